-- SPDX-License-Identifier: Apache-2.0
-- The example of Dive into Deep Learning: queries (2,4,100), keys (2,6,100), all ones, 5 heads.
--
--     attnd --demo &
--     wrk -t1 -c64 -d10s --latency -s tests/load/d2l.lua http://127.0.0.1:8080

local function list(item, count)
  local items = {}
  for i = 1, count do items[i] = item end
  return "[" .. table.concat(items, ",") .. "]"
end

local function ones(batch, tokens, width)
  return list(list(list("1", width), tokens), batch)
end

wrk.method = "POST"
wrk.path = "/v1/attention"
wrk.headers["Content-Type"] = "application/json"
wrk.body = '{"model":"d2l","queries":' .. ones(2, 4, 100) .. ',"keys":' .. ones(2, 6, 100)
  .. ',"valid_lens":[3,2]}'
