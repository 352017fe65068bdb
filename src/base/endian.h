/* SPDX-License-Identifier: Apache-2.0 */
/* endian.h: attnd runs on little-endian machines only.
 *
 * Safetensors files, binary bodies and texts that are read eight bytes at a time are all
 * little-endian, and are copied to numbers without a conversion. A file that relies on
 * this includes this header. */
#pragma once

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__,
               "attnd runs on little-endian machines only");
