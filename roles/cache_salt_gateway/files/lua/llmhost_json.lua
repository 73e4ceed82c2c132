-- SPDX-FileCopyrightText: 2026 llmhost contributors
-- SPDX-License-Identifier: GPL-3.0-or-later
-- Splices members into and out of a JSON object without re-encoding a byte of the rest. Only RFC 8259 in UTF-8 passes:
-- on such a text every parser agrees what the top-level keys are.

local ffi = require "ffi"

local M = {}

local MAX_DEPTH = 128
local MAX_MEMBERS = 512
-- The longest guarded name with every letter written as \uXXXX.
local MAX_RAW_KEY = 6 * 32

-- A table-driven automaton: step[state * 256 + byte] is the next state, times 256. States from `stop` on leave the
-- inner loop, because something has to be remembered.
local states, order = {}, {}
local function state(name)
    if not states[name] then
        order[#order + 1] = name
        states[name] = {}
    end
    return states[name]
end

local function on(name, bytes, target)
    local row = state(name)
    state(target)
    for i = 1, #bytes do
        row[bytes:byte(i)] = target
    end
end

local function on_range(name, first, last, target)
    local row = state(name)
    state(target)
    for byte = first, last do
        row[byte] = target
    end
end

local SPACE = " \t\r\n"
local DIGITS = "0123456789"
local HEX = DIGITS .. "abcdefABCDEF"

-- The inside of a string up to its closing quote, with UTF-8 checked (no overlong form, no surrogate, nothing above
-- U+10FFFF).
local function string_states(p, closed)
    local inside = p .. "str"
    on_range(inside, 0x20, 0x7F, inside)
    on(inside, '"', closed)
    on(inside, "\\", p .. "esc")
    on(p .. "esc", '"\\/bfnrt', inside)
    on(p .. "esc", "u", p .. "u1")
    for i = 1, 3 do
        on(p .. "u" .. i, HEX, p .. "u" .. i + 1)
    end
    on(p .. "u4", HEX, inside)
    on_range(inside, 0xC2, 0xDF, p .. "tail1")
    on_range(inside, 0xE0, 0xE0, p .. "e0")
    on_range(inside, 0xE1, 0xEC, p .. "tail2")
    on_range(inside, 0xED, 0xED, p .. "ed")
    on_range(inside, 0xEE, 0xEF, p .. "tail2")
    on_range(inside, 0xF0, 0xF0, p .. "f0")
    on_range(inside, 0xF1, 0xF3, p .. "tail3")
    on_range(inside, 0xF4, 0xF4, p .. "f4")
    on_range(p .. "tail1", 0x80, 0xBF, inside)
    on_range(p .. "tail2", 0x80, 0xBF, p .. "tail1")
    on_range(p .. "tail3", 0x80, 0xBF, p .. "tail2")
    on_range(p .. "e0", 0xA0, 0xBF, p .. "tail1")
    on_range(p .. "ed", 0x80, 0x9F, p .. "tail1")
    on_range(p .. "f0", 0x90, 0xBF, p .. "tail2")
    on_range(p .. "f4", 0x80, 0x8F, p .. "tail2")
end

-- What may follow a value within an object or an array.
local function after(name, p)
    on(name, SPACE, p .. "after")
    if p == "o_" then
        on(name, ",", "o_key")
        on(name, "}", "CLOSE")
    else
        on(name, ",", "a_val")
        on(name, "]", "CLOSE")
    end
end

local function value_states(p)
    for _, name in ipairs(p == "o_" and { "o_val" } or { "a_val", "a_first" }) do
        on(name, SPACE, name)
        on(name, '"', p .. "str")
        on(name, "{", "OPEN_OBJECT")
        on(name, "[", "OPEN_ARRAY")
        on(name, "-", p .. "minus")
        on(name, "0", p .. "zero")
        on(name, "123456789", p .. "int")
        for _, word in ipairs { "true", "false", "null" } do
            on(name, word:sub(1, 1), p .. word .. 1)
        end
    end
    for _, word in ipairs { "true", "false", "null" } do
        for i = 2, #word do
            on(p .. word .. i - 1, word:sub(i, i), i == #word and p .. "after" or p .. word .. i)
        end
    end
    string_states(p, p .. "after")
    after(p .. "after", p)
    on(p .. "minus", "0", p .. "zero")
    on(p .. "minus", "123456789", p .. "int")
    on(p .. "int", DIGITS, p .. "int")
    on(p .. "dot", DIGITS, p .. "frac")
    on(p .. "frac", DIGITS, p .. "frac")
    on(p .. "exp", DIGITS, p .. "power")
    on(p .. "exp", "+-", p .. "sign")
    on(p .. "sign", DIGITS, p .. "power")
    on(p .. "power", DIGITS, p .. "power")
    for _, name in ipairs { "zero", "int", "frac", "power" } do
        after(p .. name, p)
        if name == "zero" or name == "int" then
            on(p .. name, ".", p .. "dot")
        end
        if name ~= "power" then
            on(p .. name, "eE", p .. "exp")
        end
    end
end

on("begin", SPACE, "begin")
on("begin", "{", "OPEN_OBJECT")
value_states "o_"
value_states "a_"
on("a_first", "]", "CLOSE")
on("o_first", SPACE, "o_first")
on("o_first", '"', "KEY")
on("o_first", "}", "CLOSE")
on("o_key", SPACE, "o_key")
on("o_key", '"', "KEY")
string_states("k_", "KEY_END")
on("colon", SPACE, "colon")
on("colon", ":", "o_val")
on("done", SPACE, "done")

local ACTIONS = { "KEY", "KEY_END", "OPEN_OBJECT", "OPEN_ARRAY", "CLOSE", "REFUSE" }
local number, count = {}, 0
for _, name in ipairs(ACTIONS) do
    state(name)
    number[name] = false
end
for _, name in ipairs(order) do
    if number[name] == nil then
        number[name] = count * 256
        count = count + 1
    end
end
local STOP = count * 256
for _, name in ipairs(ACTIONS) do
    number[name] = count * 256
    count = count + 1
end
local step = ffi.new("uint16_t[?]", count * 256)
for name, index in pairs(number) do
    for byte = 0, 255 do
        step[index + byte] = number[states[name][byte] or "REFUSE"]
    end
end

local BEGIN, DONE, COLON, IN_KEY = number.begin, number.done, number.colon, number.k_str
local O_FIRST, A_FIRST, O_AFTER, A_AFTER = number.o_first, number.a_first, number.o_after, number.a_after
local KEY, KEY_END, CLOSE = number.KEY, number.KEY_END, number.CLOSE
local OPEN_OBJECT, OPEN_ARRAY = number.OPEN_OBJECT, number.OPEN_ARRAY

local PLAIN = { b = "\b", f = "\f", n = "\n", r = "\r", t = "\t" }

-- What the inside of a key stands for; a letter beyond ASCII becomes one that no guarded name has.
local function decode(raw)
    if not raw:find("\\", 1, true) then
        return raw
    end
    local out, i = {}, 1
    while i <= #raw do
        local letter, width = raw:sub(i, i), 1
        if letter == "\\" then
            letter, width = raw:sub(i + 1, i + 1), 2
            if letter == "u" then
                local code = tonumber(raw:sub(i + 2, i + 5), 16)
                letter, width = code < 0x80 and string.char(code) or "\255", 6
            else
                letter = PLAIN[letter] or letter
            end
        end
        out[#out + 1] = letter
        i = i + width
    end
    return table.concat(out)
end

local hex = ffi.new("uint8_t[256]")
for digit = 0, 15 do
    hex[("%x"):format(digit):byte()] = digit
    hex[("%X"):format(digit):byte()] = digit
end

-- Whether the raw key decodes to this name of plain letters. A document may have a million keys, so nothing is built.
local function reads_as(p, at, length, name)
    local stop = at + length
    for i = 1, #name do
        if at >= stop then
            return false
        end
        local letter = p[at]
        if letter == 0x5C then
            if p[at + 1] ~= 0x75 then
                return false
            end
            letter = hex[p[at + 2]] * 4096 + hex[p[at + 3]] * 256 + hex[p[at + 4]] * 16 + hex[p[at + 5]]
            at = at + 5
        end
        if letter ~= name:byte(i) then
            return false
        end
        at = at + 1
    end
    return at == stop
end

-- By depth: 1 for an object, 0 for an array; an array that is the value of a key `content`; an object in such an array.
local is_object = ffi.new("uint8_t[?]", MAX_DEPTH + 2)
local is_content = ffi.new("uint8_t[?]", MAX_DEPTH + 2)
local is_part = ffi.new("uint8_t[?]", MAX_DEPTH + 2)

-- Names, first bytes and last bytes (offsets from 0) of the members of the object that the text is, or nil and why.
local function scan(text)
    local p = ffi.cast("const uint8_t *", text)
    local names, first, last, members = {}, {}, {}, 0
    local depth, at, begun, content, now = 0, 0, 0, false, BEGIN
    while true do
        -- The NUL that ends every Lua string stops this loop: no state has a step for it.
        repeat
            now = step[now + p[at]]
            at = at + 1
        until now >= STOP
        if now == KEY then
            begun = at
            if depth == 1 then
                if members == MAX_MEMBERS then
                    return nil, "too_many_fields"
                end
                if members > 0 then
                    local comma = at - 2
                    while p[comma] ~= 0x2C do
                        comma = comma - 1
                    end
                    last[members] = comma - 1
                end
                members = members + 1
                first[members] = at - 1
            end
            now = IN_KEY
        elseif now == KEY_END then
            local length = at - 1 - begun
            if depth == 1 then
                -- A longer one is no name that anybody asks for.
                names[members] = length <= MAX_RAW_KEY and decode(ffi.string(p + begun, length)) or ""
            elseif is_part[depth] == 1 and reads_as(p, begun, length, "uuid") then
                return nil, "media_uuid"
            end
            content = reads_as(p, begun, length, "content")
            now = COLON
        elseif now == OPEN_OBJECT or now == OPEN_ARRAY then
            if depth == MAX_DEPTH then
                return nil, "too_deep"
            end
            local inside = depth > 0 and is_object[depth] == 0 and is_content[depth] or 0
            depth = depth + 1
            if now == OPEN_OBJECT then
                is_object[depth], is_content[depth], is_part[depth] = 1, 0, inside
                now = O_FIRST
            else
                if depth > 1 and is_object[depth - 1] == 1 then
                    inside = content and 1 or 0
                end
                is_object[depth], is_content[depth], is_part[depth] = 0, inside, 0
                now = A_FIRST
            end
        elseif now == CLOSE then
            depth = depth - 1
            if depth > 0 then
                now = is_object[depth] == 1 and O_AFTER or A_AFTER
            else
                last[members] = at - 2
                now = DONE
                repeat
                    now = step[now + p[at]]
                    at = at + 1
                until now >= STOP
                -- Nothing but the NUL behind the last byte may end what follows the object.
                if at - 1 ~= #text then
                    return nil, "not_json"
                end
                return names, first, last, members
            end
        else
            return nil, "not_json"
        end
    end
end
M.scan = scan

-- The object without the members named in `drop` and with `head` (members in JSON, never empty) in front, in pieces, and
-- how many were dropped by name; or nil, a reason and a name, if it is no object that every parser reads alike or has a
-- member named in `refuse`. Another copy of a megabyte takes milliseconds: if nothing was dropped the last piece is the
-- text itself, and `true` comes third: its first byte, the brace, has to be written as a space.
function M.splice(text, head, drop, refuse)
    local names, first, last, members = scan(text)
    if not names then
        return nil, first
    end
    local out, dropped, from = { "{", head }, {}, nil
    for i = 1, members do
        local name = names[i]
        if refuse[name] then
            return nil, "guarded_field", name
        end
        if drop[name] then
            dropped[name] = (dropped[name] or 0) + 1
            if from then
                out[#out + 1] = ","
                out[#out + 1] = text:sub(from + 1, last[i - 1] + 1)
                from = nil
            end
        elseif not from then
            from = first[i]
        end
    end
    if not next(dropped) and members > 0 and text:byte(1) == 0x7B then
        return { "{" .. head .. ",", text }, dropped, true
    end
    if from then
        out[#out + 1] = ","
        out[#out + 1] = text:sub(from + 1, last[members] + 1)
    end
    out[#out + 1] = "}"
    return out, dropped
end

return M
