-- SPDX-License-Identifier: Apache-2.0
-- A layer of the size in real models: queries (1,128,768), 12 heads, numbers of seven digits. A
-- request has about 1 MB of JSON, so the time includes reading and printing numbers.
--
--     build/venv/bin/python tests/load/make_wide.py wide.safetensors
--     attnd --model wide=wide.safetensors &
--     wrk -t1 -c8 -d10s --latency -s tests/load/wide.lua http://127.0.0.1:8080

math.randomseed(1)

local rows = {}
for token = 1, 128 do
  local row = {}
  for i = 1, 768 do row[i] = string.format("%.7f", math.random() * 2 - 1) end
  rows[token] = "[" .. table.concat(row, ",") .. "]"
end

wrk.method = "POST"
wrk.path = "/v1/attention"
wrk.headers["Content-Type"] = "application/json"
wrk.body = '{"model":"wide","queries":[[' .. table.concat(rows, ",") .. ']]}'
