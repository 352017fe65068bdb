/* SPDX-License-Identifier: Apache-2.0 */
/* join.h: several requests of one model, computed as one.
 *
 * A product of few rows takes as long as reading the model weights. Joined requests read
 * them once: their sequences become one batch, in order, packed without padding. With the
 * native engine no row depends on its neighbours, so every request gets the bits that it
 * would get alone.
 *
 *     if (join_possible(model, requests[0], requests[i])) ... for each i > 0
 *     memory = aligned_alloc(ATTN_ALIGNMENT, join_bytes(model, requests, count));
 *     join_pack(model, requests, count, memory, &joined);
 *     if (attn_plan(model, &joined, &sizes, &error) != ATTN_OK) ...
 *     attn_run(model, &joined, &sizes, scratch, &result);
 *     attn_result own = join_take(&result, &own_sizes[i]); ... for each i
 *
 * attn_plan() has accepted every request by itself. The functions are pure: they keep,
 * allocate and lock nothing. All are thread-safe for distinct memory. */
#pragma once

#include <attnd/attention.h>

/* Joining pays up to this many rows of queries, or of keys where they are more. A row of
 * a model 4096 wide takes ten times as long alone as among 64. With a width of 768, whose
 * weights stay in the last cache, it takes four times as long. More rows gain a wide
 * model a tenth, and a narrow one nothing. */
#define JOIN_ROWS_MAX 64

/* Returns whether two requests of a model can be computed as one. When the first of
 * several can be joined with each of the others, they can all be joined.
 *
 * The engine must be native, and the model must project. Both want the same results and
 * kind of weights, none of them selected, and their head_mask has equal numbers; NULL is
 * equal to ones. Where two inputs of one are the same tensor, they are so in the other,
 * since such inputs are projected together. Lengths and valid_lens may differ; so may
 * causal and prefix_lens, unless one has a window, chunks or positions; then neither has
 * prefix_lens. Positions both have, or none. All else is the same byte by byte, so
 * requests begin as zeros. */
bool join_possible(const attn_model *model, const attn_request *a, const attn_request *b);

/* Returns a hash of all that requests must have in common: those that can be joined have
 * the same one. */
uint64_t join_hash(const attn_model *model, const attn_request *request);

/* Returns the bytes that join_pack() writes, a multiple of ATTN_ALIGNMENT, or SIZE_MAX
 * when they cannot be counted. The sum of what each request would need by itself is never
 * less. It is up to 10 * ATTN_ALIGNMENT more for each request but the first. */
size_t join_bytes(const attn_model *model, const attn_request *const *requests,
                  size_t count);

/* Joins requests[0..count), of which join_possible() says that the first can be joined
 * with each other one. Copies their lengths and rows to `memory`, join_bytes() at
 * ATTN_ALIGNMENT, which the caller owns and *ret_joined borrows.
 *
 * The mask of every request becomes valid_lens per query, and *ret_joined is not causal;
 * but where requests have windows, chunks or positions, it has the same. It borrows
 * head_mask and `parallel` from requests[0]. The other requests and their tensors may be
 * released.
 * attn_plan() refuses *ret_joined only with ATTN_E_OVERFLOW. */
void join_pack(const attn_model *model, const attn_request *const *requests, size_t count,
               void *memory, attn_request *ret_joined);

/* Takes the results of one request from those of the joined ones. `sizes` is what
 * attn_plan() returned for that request alone.
 *
 * *rest is at first the result of the joined request. Every call returns where the next
 * request's results begin in it, in the order of join_pack(), and moves *rest past
 * them. */
attn_result join_take(attn_result *rest, const attn_sizes *sizes);
