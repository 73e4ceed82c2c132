# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""One value at a time: what a key takes, what it refuses, and that it never does anything else."""
# pylint: disable=comparison-with-itself,unidiomatic-typecheck

from __future__ import annotations

import datetime

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from ansible_collections.llmhost.hardening.plugins.module_utils.kv import mapkeys, volumekeys
from ansible_collections.llmhost.hardening.plugins.module_utils.kv.mapkeys import KEYS, Bytes, Mistakes

HUGE = 10**5000  # Python 3.11 and later refuse to write it out
DISK = "/dev/disk/by-id/nvme-SAMSUNG_MZQL23T8_S64HNE0R"


def device(path, fstype="ext4", **source):
    return {"backend": "dmcrypt", "source": {"device": path, **source}, "fstype": fstype}


PATHS = ("path", "volume.source.file")


def volume(**source):
    return {"backend": "dmcrypt", "source": {"file": "/var/lib/llmhost/chat.img", "size": "1G", **source}}


def parse(key, value):
    if key.startswith("volume.source."):
        return KEYS["volume"][0](volume(**{key.rpartition(".")[2]: value}))["source"][key.rpartition(".")[2]]
    return KEYS[key][0](value)


def refusal(key, value):
    with pytest.raises(Mistakes) as caught:
        parse(key, value)
    (mistake,) = caught.value.found
    return f"{mistake.key or ''}: {mistake.reason}. Fix: {mistake.fix}"


# -- what is taken

TAKEN = [
    ("name", "a", "a"),
    ("name", "chat-2", "chat-2"),
    ("name", "x" * 32, "x" * 32),
    ("store", "vllm_fs", "vllm_fs"),
    ("state", "planned", "planned"),
    ("path", "/var/lib/vllm-kv", "/var/lib/vllm-kv"),
    ("path", "/kv", "/kv"),
    ("path", "/home/vllm/kv", "/home/vllm/kv"),
    ("path", "/srv/a@b:c+d.e/f", "/srv/a@b:c+d.e/f"),
    ("owner", "vllm", "vllm"),
    ("owner", 998, 998),
    ("owner", "998", 998),
    ("owner", 2**32 - 2, 2**32 - 2),
    ("services", ["vllm.service", "vllm@.service", "vllm@qwen\\x2d3.service"], None),
    ("services", (), []),
    ("retention_minutes", 1, 1),
    ("retention_minutes", "60", 60),
    ("retention_minutes", 5256000, 5256000),
    ("expire_every_minutes", 60, 60),
    ("expire_every_minutes", "15", 15),
    ("grace_minutes", 0, 0),
    ("max_files", 2**31, 2**31),
    ("max_files", str(2**31), 2**31),
    ("max_bytes", "160G", 160 << 30),
    ("max_bytes", "160GiB", 160 << 30),
    ("max_bytes", "1K", 1024),
    ("max_bytes", "2T", 2 << 40),
    ("max_bytes", "3P", 3 << 50),
    ("max_bytes", Bytes(5), 5),
    ("volume.source.size", "64M", 64 << 20),
    ("volume.source.file", "/var/lib/llmhost/chat.img", "/var/lib/llmhost/chat.img"),
    ("volume.source.file", "/srv/images/chat.img", "/srv/images/chat.img"),
    ("bucket", "kv-prod", "kv-prod"),
    ("endpoint", "https://s3.internal.example", "https://s3.internal.example"),
    ("endpoint", "https://s3.internal.example:8443/path", "https://s3.internal.example:8443/path"),
    ("endpoint", "http://127.0.0.1:9000", "http://127.0.0.1:9000"),
    ("endpoint", "http://[::1]:9000", "http://[::1]:9000"),
    ("endpoint", "http://localhost", "http://localhost"),
    ("prefix", "", ""),
    ("prefix", "qwen/größe", "qwen/größe"),
    ("peers", ["gpu2", "10.0.0.3:5710", "[fe80::1]:5710"], None),
    ("purpose", "Chat für alle", "Chat für alle"),
]


@pytest.mark.parametrize(("key", "value", "wanted"), TAKEN)
def test_a_good_value_is_taken(key, value, wanted):
    got = parse(key, value)
    assert got == (list(value) if wanted is None else wanted)
    assert type(got) in (str, int, list)


def test_every_key_has_a_good_value_above():
    like_another = {"tmp_grace_minutes", "dir_grace_minutes", "full_pass_hours", "retention_reason", "data_owner"}
    assert {key.partition(".")[0] for key, *_rest in TAKEN} | like_another == set(KEYS)


@pytest.mark.parametrize(
    ("key", "default"),
    [("state", "present"), ("expire_every_minutes", 5), ("grace_minutes", 2), ("tmp_grace_minutes", 60),
     ("dir_grace_minutes", 60), ("full_pass_hours", 24), ("services", [])],
)  # fmt: skip
def test_default(key, default):
    assert KEYS[key][1] == default


def test_every_other_key_has_no_default():
    with_default = {"state", "expire_every_minutes", "grace_minutes", "tmp_grace_minutes", "dir_grace_minutes",
                    "full_pass_hours", "services"}  # fmt: skip
    assert all(default is None for key, (_parse, default) in KEYS.items() if key not in with_default)


# -- what is refused, and with which words

REFUSED = [
    ("name", "", "not a tier name"),
    ("name", "Chat", "not a tier name"),
    ("name", "chat_1", "not a tier name"),
    ("name", "-chat", "not a tier name"),
    ("name", "chat-", "not a tier name"),
    ("name", "x" * 33, "1 to 32"),
    ("name", "chat\n", "not a tier name"),
    ("name", "ch\u00e4t", "not a tier name"),
    ("name", "chat\u0661", "not a tier name"),
    ("name", "..", "not a tier name"),
    ("name", 7, "not a tier name"),
    ("store", "vlm_fs", "did you mean vllm_fs"),
    ("store", "nfs", "known stores: "),
    ("store", ["vllm_fs"], "unknown store"),
    ("state", "vanished", "choose one of present, planned, absent"),
    ("state", "Present", "choose one of"),
    ("state", True, "choose one of"),
    ("path", "relative/path", "not an absolute path"),
    ("path", "", "not an absolute path"),
    ("path", None, "not an absolute path"),
    ("path", ["/kv"], "not an absolute path"),
    ("path", "/kv/", "not the plain spelling"),
    ("path", "//kv", "not the plain spelling"),
    ("path", "/srv//kv", "not the plain spelling"),
    ("path", "/srv/./kv", "not the plain spelling"),
    ("path", "/srv/../etc", "not the plain spelling"),
    ("path", "/kv/..", "not the plain spelling"),
    ("path", "/srv/my kv", "would misread"),
    ("path", "/srv/kv\n", "would misread"),
    ("path", "/srv/kv\t", "would misread"),
    ("path", "/srv/kv\x00", "would misread"),
    ("path", "/srv/kv%i", "would misread"),
    ("path", "/srv/$HOME", "would misread"),
    ("path", "/srv/kv*", "would misread"),
    ("path", "/srv/kv'", "would misread"),
    ("path", "/srv/kv\\x20", "would misread"),
    ("path", "/srv/k\u00fc", "would misread"),
    ("path", "/srv/\u0661", "would misread"),
    ("path", "/srv/\u2028kv", "would misread"),
    ("path", "/srv/" + "x" * 300, "too long"),
    ("path", "/srv/" + "-" * 80, "too long"),
    ("path", "/srv/" + "x" * 2000, "would misread"),
    ("owner", "root", "root cannot own"),
    ("owner", "nobody", "nobody cannot own"),
    ("owner", 0, "uid 0 cannot own"),
    ("owner", "0", "uid 0 cannot own"),
    ("owner", 65534, "uid 65534 cannot own"),
    ("owner", 2**32 - 1, "uid 4294967295 cannot own"),
    ("owner", 2**32, "cannot own"),
    ("owner", -1, "cannot own"),
    ("owner", HUGE, "cannot own"),
    ("owner", True, "not an account name"),
    ("owner", 998.0, "not an account name"),
    ("owner", "", "not an account name"),
    ("owner", "my user", "not an account name"),
    ("owner", "vllm\n", "not an account name"),
    ("owner", "a" * 33, "not an account name"),
    ("owner", "\u0661\u0662", "not an account name"),
    ("services", "vllm.service", "write a list"),
    ("services", {"vllm.service": 1}, "write a list"),
    ("services", ["vllm"], "with their suffix"),
    ("services", ["vllm.mount"], "with their suffix"),
    ("services", [".service"], "with their suffix"),
    ("services", ["--now.service"], "with their suffix"),
    ("services", ["../x.service"], "with their suffix"),
    ("services", ["a b.service"], "with their suffix"),
    ("services", ["vllm.service\n"], "with their suffix"),
    ("services", ["x" * 250 + ".service"], "with their suffix"),
    ("services", ["systemd-cryptsetup@x.service"], "the engine's"),
    ("services", ["llmhost-tier@chat.service"], "the engine's"),
    ("services", [None], "with their suffix"),
    ("services", [["vllm.service"]], "with their suffix"),
    ("services", ["vllm.service", "vllm.service"], "twice"),
    ("expire_every_minutes", 7, "choose one of 1, 2, 3"),
    ("expire_every_minutes", 0, "choose one of"),
    ("expire_every_minutes", 45, "choose one of"),
    ("expire_every_minutes", 5.0, "choose one of"),
    ("expire_every_minutes", True, "choose one of"),
    ("expire_every_minutes", "\u0665", "choose one of"),
    ("expire_every_minutes", "\u00b2", "choose one of"),
    ("expire_every_minutes", "9" * 5000, "choose one of"),
    ("expire_every_minutes", "*/5", "choose one of"),
    ("max_bytes", 160, "has no unit"),
    ("max_bytes", "160", "has no unit"),
    ("max_bytes", HUGE, "has no unit"),
    ("max_bytes", "160GB", "ambiguous"),
    ("max_bytes", "160 GB", "ambiguous"),
    ("max_bytes", "160g", "ambiguous"),
    ("max_bytes", "160gb", "ambiguous"),
    ("max_bytes", "1.5G", "not a size"),
    ("max_bytes", "1,5G", "not a size"),
    ("max_bytes", "1e3G", "not a size"),
    ("max_bytes", "-1G", "not a size"),
    ("max_bytes", "160 G", "not a size"),
    ("max_bytes", "160G\n", "not a size"),
    ("max_bytes", "\u0661G", "not a size"),
    ("max_bytes", "G", "not a size"),
    ("max_bytes", "160E", "not a size"),
    ("max_bytes", "160Gi", "not a size"),
    ("max_bytes", "90%", "not a size"),
    ("max_bytes", "0G", "a size of 0"),
    ("max_bytes", "999999999999999P", "larger than any disk"),
    ("max_bytes", 1.5, "not a size"),
    ("max_bytes", float("nan"), "not a size"),
    ("max_bytes", float("inf"), "not a size"),
    ("max_bytes", True, "not a size"),
    ("max_bytes", [], "not a size"),
    ("max_files", 0, "whole number of files from 1"),
    ("max_files", 2**31 + 1, "whole number of files"),
    ("bucket", "KV", "not a bucket name"),
    ("bucket", "ab", "not a bucket name"),
    ("bucket", "a..b", "not a bucket name"),
    ("bucket", "kv/prod", "not a bucket name"),
    ("bucket", "kv\n", "not a bucket name"),
    ("endpoint", "http://s3.internal.example", "in clear to s3.internal.example"),
    ("endpoint", "http://0.0.0.0:9000", "in clear"),
    ("endpoint", "http://localhost.evil.example", "in clear"),
    ("endpoint", "https://x:y@s3.internal.example", "carries credentials"),
    ("endpoint", "https://x@s3.internal.example", "carries credentials"),
    ("endpoint", "s3.internal.example", "not an http or https URL"),
    ("endpoint", "ftp://s3.internal.example", "not an http or https URL"),
    ("endpoint", "https://", "not an http or https URL"),
    ("endpoint", "https://host:0", "not an http or https URL"),
    ("endpoint", "https://host:99999", "not an http or https URL"),
    ("endpoint", "https://ho st", "not an http or https URL"),
    ("endpoint", "https://host\n", "not an http or https URL"),
    ("endpoint", "https://host/?x=1", "not an http or https URL"),
    ("endpoint", "https://host#x", "not an http or https URL"),
    ("endpoint", "https://[zz]", "not an http or https URL"),
    ("endpoint", 443, "not a URL"),
    ("prefix", "a\nb", "not a key prefix"),
    ("prefix", "x" * 501, "not a key prefix"),
    ("prefix", None, "not a key prefix"),
    ("peers", "gpu2", "write a list"),
    ("peers", ["gpu 2"], "host name or address"),
    ("peers", ["-oProxyCommand=x"], "host name or address"),
    ("peers", [2], "host name or address"),
    ("purpose", "", "one line of text"),
    ("purpose", "  ", "one line of text"),
    ("purpose", "a\nb", "one line of text"),
    ("purpose", "\x1b[31mred", "one line of text"),
    ("purpose", "\ud800", "one line of text"),
    ("purpose", "x" * 501, "one line of text"),
    ("purpose", 3, "one line of text"),
    ("retention_reason", "", "one line of text"),
    ("data_owner", ["a"], "one line of text"),
    ("volume.source.size", "63M", "no usable size"),
    ("volume.source.size", "65537K", "no usable size"),
    ("volume.source.size", 1 << 30, "has no unit"),
    ("volume.source.size", None, "not a size"),
    ("volume.source.size", Bytes((64 << 20) + 1), "no usable size"),
    ("volume.source.size", Bytes(10**40), "has no unit"),
    ("volume.source.file", "chat.img", "not an absolute path"),
    ("volume.source.file", None, "not an absolute path"),
    ("volume.source.file", "/dev/sdb1", "changes when disks do"),
    ("volume.source.file", "/dev/disk/by-id/x", "a device, not a file"),
    ("volume.source.file", "/var/lib/llmhost", "keeps its state"),
    ("volume.source.file", "/var/lib/llmhost/state/chat", "keeps its state"),
]


@pytest.mark.parametrize(("key", "value", "words"), REFUSED, ids=lambda value: mapkeys.show(value, 40))
def test_a_bad_value_is_one_mistake_with_reason_and_fix(key, value, words):
    text = refusal(key, value)
    assert words in text
    assert text.isprintable() and len(text) < 900


@pytest.mark.parametrize("key", [key for key in KEYS if key.endswith(("_minutes", "_hours"))])
@pytest.mark.parametrize("value", [-1, 10**9, HUGE, True, 1.0, 0.5, float("nan"), float("inf"), "", " 5", "5\n", "5.0",
                                   "0x5", "\u0665", "five", [], {}, [5], datetime.date(2026, 1, 1), b"5"],
                         ids=lambda value: mapkeys.show(value, 20))  # fmt: skip
def test_no_number_of_minutes_is_anything_but_a_whole_number_in_range(key, value):
    refusal(key, value)


SYSTEM = """/ /bin /boot /boot/kv /data /dev /dev/shm /dev/shm/kv /efi /etc /etc/llmhost /home /home/vllm /lib /lib64
/lost+found /media /mnt /opt /proc /proc/self /root /root/kv /run /run/kv /sbin /srv /sys /sys/fs /tmp /tmp/hicache
/usr /usr/bin /usr/local /usr/local/sbin /usr/share/kv /var /var/cache /var/lib /var/lib/dpkg /var/lib/dpkg/info
/var/lib/docker/volumes/kv /var/lib/systemd /var/lock /var/log /var/log/kv /var/run/kv /var/spool /var/spool/cron
/var/tmp /var/tmp/kv /var/www/html""".split()


@pytest.mark.parametrize("path", SYSTEM)
@pytest.mark.parametrize("key", PATHS)
def test_no_place_of_the_system_is_a_tier_or_an_image(key, path):
    words = "device, not a file" if key != "path" and path.startswith("/dev") else "belongs to the system"
    assert words in refusal(key, path)


@pytest.mark.parametrize("path", ["/var/lib/llmhost", "/var/lib/llmhost/state", "/var/lib/llmhost/x"])
def test_our_own_directory_is_no_tier(path):
    assert "keeps its state" in refusal("path", path)


@pytest.mark.parametrize("path", ["/usrx", "/tmpfs/kv", "/variable", "/var/library/kv", "/homes/x", "/binary"])
def test_a_name_that_only_begins_like_one_of_the_system_is_free(path):
    assert parse("path", path) == path


@pytest.mark.parametrize(
    "url",
    ["https://AKIA:hunter2@s3.example", "https://hunter2@s3.example", "//x:hunter2@s3.example", "https://x:hunter2@[bad",
     "https://x:hunt er2@s3.example", "x:hunter2@s3.example", "https://s3.example/?sig=hunter2", "https://hunter2 x"],
)  # fmt: skip
def test_a_secret_in_an_endpoint_is_refused_and_not_repeated(url):
    assert "hunter2" not in refusal("endpoint", url)


@pytest.mark.parametrize(
    ("value", "mistakes"),
    [
        ("ephemeral", {""}),
        ({}, {"volume.backend", "volume.source"}),
        ({"backend": "luks"}, {"volume.backend", "volume.source"}),
        ({"backend": ["dmcrypt"]}, {"volume.backend", "volume.source"}),
        ({"backend": "dmcrypt"}, {"volume.source"}),
        ({"backend": "dmcrypt", "source": "/dev/sdb"}, {"volume.source"}),
        ({"backend": "dmcrypt", "source": {}}, {"volume.source.file", "volume.source.size"}),
        ({**volume(), "key": "keyfile"}, {"volume.key", "volume.keyfile"}),
        ({**volume(), "key": "keyfile", "keyfile": "/srv/k"}, {"volume.key"}),
        ({**volume(), "keyfile": "/srv/k"}, {"volume.keyfile"}),
        ({**volume(), "key": "tang"}, {"volume.key"}),
        ({**volume(), "discard": "yes", "no_workqueue": 1}, {"volume.discard", "volume.no_workqueue"}),
        (device("/dev/sdb"), {"volume.source.device"}),
        (device("/dev/nvme0n1p2"), {"volume.source.device"}),
        (device("/dev/disk/by-path/pci-0000"), {"volume.source.device"}),
        (device("/dev/disk/by-id/../../sdb"), {"volume.source.device"}),
        (device("/srv/x"), {"volume.source.device"}),
        (device(None), {"volume.source.device"}),
        (device(DISK, file="/srv/x"), {"volume.source.file"}),
        (device(DISK, size="3"), {"volume.source.size"}),
        (device(DISK, size="64M", fstype="xfs"), {"volume.fstype"}),
        ({**volume(), "attested": {"reason": "x", "until": "2027-01-01"}}, {"volume.attested"}),
        ({"backend": "existing", "attested": "yes"}, {"volume.attested"}),
        ({"backend": "existing", "attested": {"reason": "EBS"}}, {"volume.attested.until"}),
        (
            {"backend": "existing", "attested": {"until": "2027-02-30", "x": 1}},
            {"volume.attested.until", "volume.attested.reason", "volume.attested.x"},
        ),
        ({**volume(), "rekey_at": 330}, {"volume.rekey_at"}),
        ({**volume(), "rekey_at": "24:00"}, {"volume.rekey_at"}),
        ({**volume(), "rekey_at": "3:30"}, {"volume.rekey_at"}),
        ({**volume(), "rekey_at": "03:30\n"}, {"volume.rekey_at"}),
        ({**device(DISK), "key": "keyfile", "keyfile": "/srv/k", "rekey_at": "03:30"}, {"volume.rekey_at"}),
        ({**device(DISK), "key": "keyfile"}, {"volume.keyfile"}),
        ({**device(DISK), "key": "keyfile", "keyfile": "k"}, {"volume.keyfile"}),
        ({**device(DISK), "key": "keyfile", "keyfile": "/run/k"}, {"volume.keyfile"}),
        ({**volume(), "key": HUGE}, {"volume.key"}),
        ({**volume(), "fstype": "btrfs"}, {"volume.fstype"}),
        ({**volume(), "fstyp": "ext4"}, {"volume.fstyp"}),
        ({**volume(), 3: 4, "a\nb": 1}, {"volume.3", "volume.'a\\nb'"}),
        (volume(sise="1G"), {"volume.source.sise"}),
        (volume(file="x", size=3, uuid=1), {"volume.source.file", "volume.source.size", "volume.source.uuid"}),
        (
            {"backend": "existing", "source": {}, "key": "ephemeral", "x": 1},
            {"volume.source", "volume.key", "volume.x"},
        ),
    ],
    ids=lambda value: mapkeys.show(value, 50),
)
def test_every_mistake_of_a_volume_is_named_at_once(value, mistakes):
    with pytest.raises(Mistakes) as caught:
        KEYS["volume"][0](value)
    assert sorted(mistake.key or "" for mistake in caught.value.found) == sorted(mistakes)


def test_a_volume_is_completed():
    parse_volume = KEYS["volume"][0]
    full = {"backend": "dmcrypt", "source": {"file": "/var/lib/llmhost/chat.img", "size": 1 << 30}, "key": "ephemeral",
            "keyfile": None, "tpm2_pcrs": None, "fstype": "ext4", "mount_options": [], "discard": False,
            "no_workqueue": False, "rekey_at": None, "attested": None}  # fmt: skip
    assert parse_volume(volume()) == parse_volume({**volume(), "key": None, "fstype": None}) == full
    assert type(parse_volume(volume(size=Bytes(1 << 30)))["source"]["size"]) is int
    nothing = {"backend": "existing", "source": None, "key": None, "keyfile": None, "tpm2_pcrs": None, "fstype": None,
               "mount_options": [], "discard": False, "no_workqueue": False, "rekey_at": None,
               "attested": None}  # fmt: skip
    assert parse_volume({"backend": "existing"}) == parse_volume(nothing) == nothing


def test_a_kernel_name_is_refused_with_the_way_to_the_stable_one():
    with pytest.raises(Mistakes) as caught:
        KEYS["volume"][0](device("/dev/nvme1n1"))
    (mistake,) = caught.value.found
    assert "changes when disks do" in mistake.reason
    assert "find -L /dev/disk/by-id -samefile /dev/nvme1n1" in mistake.fix


def test_an_attestation_is_kept_with_its_last_day():
    import datetime

    for until in ("2027-06-30", datetime.date(2027, 6, 30)):
        value = {"backend": "existing", "attested": {"reason": "EBS, ticket 7", "until": until}}
        volume = KEYS["volume"][0](value)
        assert volume["attested"] == {"reason": "EBS, ticket 7", "until": "2027-06-30"}
        assert volumekeys.attested_until(volume, datetime.date(2027, 6, 30)) == "2027-06-30"
        assert volumekeys.attested_until(volume, datetime.date(2027, 7, 1)) is None
    assert volumekeys.attested_until(None, datetime.date(2027, 1, 1)) is None


def test_a_device_is_completed():
    parse_volume = KEYS["volume"][0]
    full = parse_volume({**device(DISK), "key": "keyfile", "keyfile": "/etc/llmhost/keys/chat.key", "discard": True})
    assert full["source"] == {"device": DISK, "size": None} and full["discard"] is True
    assert parse_volume(device("/dev/disk/by-partuuid/5c2d", size="1G"))["source"]["size"] == 1 << 30


@pytest.mark.parametrize(
    ("key", "near"), [("retention_minute", "retention_minutes"), ("pfad", None), ("servcies", "services")]
)
def test_an_unknown_key_is_answered_with_the_nearest(key, near):
    fix = mapkeys.unknown_key_fix(key, tuple(KEYS))
    assert fix == f"did you mean {near}" if near else fix.startswith("known keys: name, store")


@pytest.mark.parametrize("key", [3, None, HUGE, ("a",), "x" * 10**6], ids=lambda key: mapkeys.show(key, 10))
def test_an_unknown_key_may_be_anything(key):
    assert mapkeys.unknown_key_fix(key, tuple(KEYS)).startswith("known keys")


def test_what_is_shown_is_short_and_one_line():
    class Rude:
        def __repr__(self):
            return "a\nb" * 50

    for value in (HUGE, "x" * 10**6, "a\nb\u2028", Rude(), [[1] * 100]):
        assert len(mapkeys.show(value)) <= 63 and mapkeys.show(value).isprintable()


def test_within_goes_by_components():
    assert mapkeys.within("/a/b", "/a") and mapkeys.within("/a", "/a") and mapkeys.within("/a", "/")
    assert not mapkeys.within("/ab", "/a") and not mapkeys.within("/", "/a")


# -- anything at all

ODD = ["9" * 5000, "\u0665", "\ud800", datetime.date(2026, 1, 1), "160G", "/kv", "vllm.service"]
SCALARS = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=20), st.binary(max_size=5),
    st.just(5000).map(lambda digits: 10**digits), st.sampled_from(ODD),
)  # fmt: skip
ANYTHING = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.text(max_size=8) | st.sampled_from(["backend", "source", "key", "file", "size"]), inner, max_size=4
        )
    ),
    max_leaves=12,
)


@given(value=ANYTHING)
def test_a_parser_gives_a_value_of_python_s_own_types_or_mistakes(value):
    for parse_key, _default in KEYS.values():
        try:
            got = parse_key(mapkeys.plain(value))
        except Mistakes as mistakes:
            assert mistakes.found
            for mistake in mistakes.found:
                assert all(text.isprintable() and text for text in (mistake.reason, mistake.fix))
        else:
            assert type(got) in (str, int, list, dict)


@given(value=ANYTHING)
def test_plain_leaves_plain_values_as_they_are(value):
    assume(value == value and "nan" not in mapkeys.show(value, 10**4))
    assert mapkeys.plain(value, 20) == value


def test_plain_strips_subclasses_at_every_depth_and_ends_in_any_structure():
    class Text(str):
        pass

    class Number(int):
        pass

    class Mapping(dict):
        pass

    class Sequence(list):
        pass

    tagged = Mapping({Text("a"): Sequence([Text("b"), Number(3), (Number(4),), True, None, 1.5])})
    got = mapkeys.plain(tagged)
    assert got == {"a": ["b", 3, [4], True, None, 1.5]}
    assert type(got) is dict and type(next(iter(got))) is str and [type(item) for item in got["a"]] == [
        str, int, list, bool, type(None), float]  # fmt: skip
    circle: list[object] = []
    circle.append(circle)
    deep = circle
    for _level in range(100000):
        deep = [deep]
    assert mapkeys.show(mapkeys.plain(circle)) and mapkeys.show(mapkeys.plain(deep))
