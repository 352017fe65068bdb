-- SPDX-License-Identifier: Apache-2.0
-- Measures HTTP alone: a route that computes nothing.
--
--     attnd --demo &
--     wrk -t1 -c64 -d10s --latency -s tests/load/idle.lua http://127.0.0.1:8080

wrk.path = "/v2/health/live"
