-- SPDX-FileCopyrightText: 2026 llmhost contributors
-- SPDX-License-Identifier: GPL-3.0-or-later
-- Gives every request its tenant's cache_salt and drops the client's. What it cannot judge it refuses.

local ffi = require "ffi"
local json = require "llmhost_json"

ffi.cdef [[
typedef struct evp_md_st EVP_MD;
const EVP_MD *EVP_sha256(void);
unsigned char *HMAC(const EVP_MD *md, const void *key, int key_len, const unsigned char *d, size_t n,
                    unsigned char *md_out, unsigned int *md_len);
unsigned char *SHA256(const unsigned char *d, size_t n, unsigned char *md_out);
]]
local crypto = ffi.load "libcrypto.so.3"

local M = {}

-- Where a tenant that must not be stored cannot be kept from being stored, it gets nothing.
local NO_PERSIST = ',"kv_transfer_params":{"max_offload_tokens":0}'
-- Members of a request that reach into other requests' blocks, into the engine or past this gateway.
local REFUSE = {}
for _, name in ipairs {
    "background", "chat_template", "ec_transfer_params", "extra_body", "extra_headers", "kv_hints", "kv_transfer_params",
    "mm_payload", "nvext", "previous_response_id", "priority", "request_id", "sampling_params", "session_id", "vllm_xargs",
} do
    REFUSE[name] = true
end
local REFUSE_NO_PERSIST = setmetatable({ kv_transfer_params = false }, { __index = REFUSE })
local DROP = { cache_salt = true }
local DROP_NO_PERSIST = { cache_salt = true, kv_transfer_params = true }

local MESSAGES = {
    auth_service = { 503, "the service that names tenants gave no answer that can be used" },
    body = { 400, "the request has no body" },
    content_encoding = { 415, "send the body without Content-Encoding" },
    content_type = { 415, "send application/json in UTF-8" },
    credential_missing = { 401, "no API key: send Authorization: Bearer KEY or x-api-key: KEY" },
    credential_repeated = { 400, "more than one credential; send one" },
    credential_unknown = { 401, "this credential belongs to no tenant" },
    guarded_field = { 400, "this field may not be sent through this gateway" },
    media_uuid = { 400, "uuid on a part of a message may not be sent through this gateway" },
    method = { 405, "only POST" },
    no_persist = { 403, "this endpoint cannot keep your prompts from being stored, as your account demands" },
    not_json = { 400, "the body is no single JSON object of RFC 8259 in UTF-8" },
    path = { 404, "no such endpoint here" },
    tenant_unknown = { 403, "this tenant is not known here" },
    too_deep = { 400, "the JSON is nested too deeply" },
    too_large = { 413, "the body is too large" },
    too_many_fields = { 400, "the JSON object has too many fields" },
}

local CONTENT_TYPES = { ["application/json"] = true, ["application/json;charset=utf-8"] = true }

local settings, site_key, tenants, credentials, tenants_id, unreadable
local digest, size = ffi.new("unsigned char[32]"), ffi.new("unsigned int[1]")

local function hex(bytes)
    return (bytes:gsub(".", function(byte)
        return ("%02x"):format(byte:byte())
    end))
end

local function sha256(text)
    crypto.SHA256(text, #text, digest)
    return ffi.string(digest, 32)
end

local function hmac(key, text)
    crypto.HMAC(crypto.EVP_sha256(), key, #key, text, #text, digest, size)
    return ffi.string(digest, 32)
end

local function read(path)
    local file, why = io.open(path, "rb")
    if not file then
        error("llmhost gateway: " .. why, 0)
    end
    local text = file:read "*a"
    file:close()
    return text
end

local function read_key(path)
    local digits = read(path):match "^(%x+)\n?$"
    if not digits or #digits ~= 64 then
        error("llmhost gateway: " .. path .. " is not 64 hexadecimal digits", 0)
    end
    return (digits:gsub("%x%x", function(pair)
        return string.char(tonumber(pair, 16))
    end))
end

-- The encoding is injective: no part may hold a NUL.
local function salt(key, label, tenant, epoch)
    local text = label .. "\0" .. tenant .. "\0" .. epoch
    return (ngx.encode_base64(hmac(key, text), true):gsub("+", "-"):gsub("/", "_"))
end

-- A line: NAME epoch=EPOCH [key=DIGEST...] [certificate=DIGEST...] [no_persist]
local function parse_tenants(text, path)
    local found, by_credential, number = {}, {}, 0
    for line in text:gmatch "([^\n]*)\n?" do
        number = number + 1
        local function bad(why)
            error(("llmhost gateway: %s line %d: %s"):format(path, number, why), 0)
        end
        line = line:gsub("#.*", "")
        local name, rest = line:match "^(%S+)(.*)$"
        if name then
            if not name:find "^[a-z0-9][a-z0-9-]*$" or #name > 64 then
                bad "a tenant's name is 1 to 64 of a-z, 0-9 and -"
            elseif found[name] then
                bad("tenant " .. name .. " stands twice")
            end
            local tenant = { name = name }
            for word in rest:gmatch "%S+" do
                local what, value = word:match "^([a-z]+)=(.*)$"
                if word == "no_persist" then
                    tenant.no_persist = true
                elseif what == "epoch" and not tenant.epoch and value:find "^[A-Za-z0-9._-]+$" and #value <= 64 then
                    tenant.epoch = value
                elseif (what == "key" or what == "certificate") and #value == 64 and value:find "^[0-9a-f]+$" then
                    local known = what .. ":" .. value
                    if by_credential[known] then
                        bad("a credential of tenant " .. name .. " stands twice")
                    end
                    by_credential[known] = tenant
                else
                    bad("cannot read what follows " .. name)
                end
            end
            if not tenant.epoch then
                bad("tenant " .. name .. " has no epoch")
            end
            tenant.salt = salt(site_key, settings.label, name, tenant.epoch)
            found[name] = tenant
        elseif line:find "%S" then
            bad "a line begins with a tenant's name"
        end
    end
    return found, by_credential
end

local function load_tenants()
    local text = read(settings.tenants)
    local id = hex(sha256(text)):sub(1, 16)
    if id == unreadable then
        return
    end
    if id ~= tenants_id then
        unreadable = id
        tenants, credentials = parse_tenants(text, settings.tenants)
        tenants_id = id
    end
    unreadable = nil
end

-- Runs in the master at every start and reload; an error keeps a start from happening and a reload without effect.
function M.init(given)
    settings = given
    site_key = read_key(given.key)
    settings.key_id = hex(hmac(site_key, "llmhost-key-id")):sub(1, 16)
    load_tenants()
    if given.engine_key then
        local secret = read(given.engine_key):gsub("%s+$", "")
        if secret == "" or secret:find "[^\33-\126]" then
            error("llmhost gateway: the engine's key is empty or no single word", 0)
        end
        settings.authorization = "Bearer " .. secret
    end
end

-- A worker takes new tenants and epochs by itself: no connection is closed for them, as it would be by new workers. A
-- file that it cannot read changes nothing and is told once.
function M.init_worker()
    ngx.timer.every(1, function(premature)
        if not premature then
            local fine, why = pcall(load_tenants)
            if not fine then
                ngx.log(ngx.ERR, why)
            elseif not unreadable then
                ngx.shared.llmhost_metrics:set("tenants_file", 1)
                return
            end
            ngx.shared.llmhost_metrics:set("tenants_file", 0)
        end
    end)
end

local function count(name, ...)
    ngx.shared.llmhost_metrics:incr(table.concat({ name, ... }, "|"), 1, 0)
end

local function refuse(reason, name)
    local status, text = unpack(MESSAGES[reason])
    ngx.ctx.refused = true
    ngx.var.llmhost_reason = reason
    ngx.status = status
    ngx.header["Content-Type"] = "application/json"
    if status == 405 then
        ngx.header["Allow"] = "POST"
    end
    -- Only names of our own list get into an answer, never a client's text.
    ngx.say('{"error":{"message":"', name and name .. ": " or "", text, '","type":"llmhost_gateway","code":"', reason, '"}}')
    return ngx.exit(status)
end

local function by_api_key(headers)
    local bearer, other = headers["authorization"], headers["x-api-key"]
    if type(bearer) == "table" or type(other) == "table" or (bearer and other) then
        return nil, "credential_repeated"
    end
    local key = other or bearer and bearer:match "^[Bb][Ee][Aa][Rr][Ee][Rr] +(%S+)$"
    if not key or key == "" then
        return nil, "credential_missing"
    end
    return credentials["key:" .. hex(sha256(key))], "credential_unknown"
end

local function by_certificate()
    if ngx.var.ssl_client_verify ~= "SUCCESS" then
        return nil, "credential_missing"
    end
    local pem = (ngx.var.ssl_client_raw_cert or ""):match "BEGIN CERTIFICATE%-+%s+([%w+/=%s]+)"
    local der = pem and ngx.decode_base64((pem:gsub("%s", "")))
    if not der then
        return nil, "credential_missing"
    end
    return credentials["certificate:" .. hex(sha256(der))], "credential_unknown"
end

local function by_auth_request()
    local name = ngx.var.llmhost_auth_tenant
    if not name or name == "" then
        return nil, "auth_service"
    end
    return tenants[name], "tenant_unknown"
end

local IDENTITY = { api_key = by_api_key, client_certificate = by_certificate, auth_request = by_auth_request }

function M.access()
    local path = ngx.var.uri
    -- The engine is asked for the path that was judged, so nobody may write it in another way.
    if ngx.var.request_uri ~= path or not settings.paths[path] then
        return refuse "path"
    end
    ngx.var.llmhost_path = path
    local headers = ngx.req.get_headers(0)
    local tenant, why = IDENTITY[settings.identity](headers)
    if not tenant then
        return refuse(why)
    end
    ngx.var.llmhost_tenant = tenant.name
    if ngx.req.get_method() ~= "POST" then
        return refuse "method"
    end
    if headers["content-encoding"] then
        return refuse "content_encoding"
    end
    local kind = headers["content-type"]
    if type(kind) ~= "string" or not CONTENT_TYPES[kind:lower():gsub('[%s"]', "")] then
        return refuse "content_type"
    end
    if tenant.no_persist and not settings.paths[path].no_persist then
        return refuse "no_persist"
    end
    ngx.req.read_body()
    local body = ngx.req.get_body_data()
    if not body then
        -- A body that did not fit into memory lies in a file below /run.
        return refuse(ngx.req.get_body_file() and "too_large" or "body")
    end
    local head = '"cache_salt":"' .. tenant.salt .. '"' .. (tenant.no_persist and NO_PERSIST or "")
    local pieces, dropped, more = json.splice(
        body,
        head,
        tenant.no_persist and DROP_NO_PERSIST or DROP,
        tenant.no_persist and REFUSE_NO_PERSIST or REFUSE
    )
    if not pieces then
        return refuse(dropped, more)
    end
    local length = 0
    for i = 1, #pieces do
        length = length + #pieces[i]
    end
    -- With its exact length it stays in memory.
    ngx.req.init_body(length)
    -- A Lua string may not change, but nobody else looks before it is as it was.
    local brace = more and ffi.cast("uint8_t *", body)
    if brace then
        brace[0] = 0x20
    end
    for i = 1, #pieces do
        ngx.req.append_body(pieces[i])
    end
    if brace then
        brace[0] = 0x7B
    end
    ngx.req.finish_body()
    ngx.var.llmhost_authorization = settings.authorization or ""
    ngx.ctx.salt = tenant.salt
    count("injections", tenant.name)
    if dropped.cache_salt then
        count("overrides", tenant.name)
    end
end

-- Engines quote a request that they refuse, salt included; the mark has the same length, so no header lies.
local MARK = ("x"):rep(43)

-- Replaces the salt wherever it stands, also where it is cut in two by the answer's packets: what might be its beginning
-- waits for the next one.
local function scrub(text, secret)
    local found = 0
    if text:find(secret, 1, true) then
        text, found = text:gsub(secret:gsub("%-", "%%-"), MARK)
    end
    local first = secret:byte(1)
    for length = math.min(#secret - 1, #text), 1, -1 do
        if text:byte(-length) == first and text:sub(-length) == secret:sub(1, length) then
            return text:sub(1, -length - 1), text:sub(-length), found
        end
    end
    return text, "", found
end
M.scrub = scrub

function M.body()
    local ctx = ngx.ctx
    local secret = ctx.salt
    if not secret then
        return
    end
    local chunk, last = ngx.arg[1], ngx.arg[2]
    if chunk ~= "" or last then
        local text, rest, found = scrub((ctx.held or "") .. chunk, secret)
        if last then
            text, rest = text .. rest, ""
        end
        ctx.held = rest
        if text ~= chunk then
            ngx.arg[1] = text
        end
        if found > 0 and not ctx.scrubbed then
            ctx.scrubbed = true
            count("scrubbed", ngx.var.llmhost_tenant)
        end
    end
end

-- Refusals that nginx makes before a line of this code runs.
local BY_STATUS = { [400] = "bad_request", [404] = "path", [408] = "slow", [413] = "too_large", [414] = "too_long", [431] = "too_long" }

-- nginx sets our variables to their "-" only for a request that it could read.
local function told(value)
    return value and value ~= "" and value or "-"
end

function M.log()
    local tenant, status, reason = told(ngx.var.llmhost_tenant), ngx.status, told(ngx.var.llmhost_reason)
    if ngx.ctx.salt then
        count("forwarded", tenant, ngx.var.llmhost_path, status)
    elseif ngx.ctx.refused or BY_STATUS[status] or status >= 400 then
        count("refusals", tenant, reason ~= "-" and reason or BY_STATUS[status] or "failed")
    end
end

local HELP = {
    { "injections", "Requests that were given their tenant's salt.", { "tenant" } },
    { "overrides", "Requests whose own salt was dropped.", { "tenant" } },
    { "refusals", "Requests that were refused.", { "tenant", "reason" } },
    { "forwarded", "Requests that the engine was asked, by the answer's status.", { "tenant", "path", "code" } },
    { "scrubbed", "Answers in which the engine quoted the salt.", { "tenant" } },
}

function M.metrics()
    ngx.header["Content-Type"] = "text/plain; version=0.0.4"
    local dict = ngx.shared.llmhost_metrics
    local lines = {}
    for _, key in ipairs(dict:get_keys(0)) do
        local values = {}
        for value in key:gmatch "[^|]+" do
            values[#values + 1] = value
        end
        local name = table.remove(values, 1)
        lines[name] = lines[name] or {}
        table.insert(lines[name], { values, dict:get(key) })
    end
    for _, entry in ipairs(HELP) do
        local name, help, labels = unpack(entry)
        local full = "llmhost_gateway_" .. name .. "_total"
        ngx.say("# HELP ", full, " ", help, "\n# TYPE ", full, " counter")
        for _, line in ipairs(lines[name] or {}) do
            local pairs_ = {}
            for i, label in ipairs(labels) do
                pairs_[i] = label .. '="' .. (line[1][i] or "-") .. '"'
            end
            ngx.say(full, "{", table.concat(pairs_, ","), "} ", line[2])
        end
    end
    local known = 0
    for _ in pairs(tenants) do
        known = known + 1
    end
    ngx.say("# TYPE llmhost_gateway_tenants gauge\nllmhost_gateway_tenants ", known)
    -- 0 while the file of the tenants cannot be read and the tenants before it are served.
    ngx.say("# TYPE llmhost_gateway_tenants_file_ok gauge\nllmhost_gateway_tenants_file_ok ", dict:get "tenants_file" or 1)
    -- What the running workers were made from; digests, no secret can be told from them.
    ngx.say(
        "# TYPE llmhost_gateway_info gauge\nllmhost_gateway_info{config=\"", settings.config_id,
        '",key="', settings.key_id, '",tenants="', tenants_id, '"} 1'
    )
end

return M
