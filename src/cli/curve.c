/* SPDX-License-Identifier: Apache-2.0 */
/* curve.c: draws how much the outputs change with each number of heads, as SVG. */
#include "base/buf.h"
#include "base/error.h"
#include "base/output.h"
#include "cli/heads.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>

/* Where the axes are in the drawing, which is 640 wide and 400 high. */
#define LEFT    72
#define RIGHT   612
#define TOP     56
#define BOTTOM  336
#define X_TICKS 16                         /* at most */
#define Y_TICKS 6                          /* at most */
#define SVG_MAX ((size_t)64 * 1024 * 1024) /* bytes */

/* The reader's system chooses between light and dark. */
static const char svg_head[] =
    "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"640\" height=\"400\" "
    "viewBox=\"0 0 640 400\" role=\"img\" aria-labelledby=\"title\">\n"
    "<style>\n"
    "svg { --paper: #fff; --ink: #222; --grid: #ddd; --line: #0b5fa5; --mark: #b3420e }\n"
    "@media (prefers-color-scheme: dark) { svg { --paper: #16181c; --ink: #ddd; "
    "--grid: #3a3d44; --line: #6cb2f2; --mark: #f4975f } }\n"
    "text { font: 13px system-ui, sans-serif; fill: var(--ink) }\n"
    ".paper { fill: var(--paper) } .grid { stroke: var(--grid) }\n"
    ".curve { fill: none; stroke: var(--line); stroke-width: 2 }\n"
    ".point { fill: var(--line) } .kept { fill: var(--mark); r: 6px }\n"
    ".middle { text-anchor: middle } .end { text-anchor: end }\n"
    "</style>\n";

struct curve {
    const double *changes; /* [num_heads / group], without the first i + 1 groups */
    size_t num_heads, group;
    double highest; /* the change at TOP */
    struct buf text;
    attn_status status; /* of all that was printed */
};

/* Adds formatted text, which is short. */
__attribute__((format(printf, 2, 3))) static void curve_print(struct curve *curve,
                                                              const char *format, ...) {
    char text[256];
    va_list arguments;

    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    if (curve->status == ATTN_OK)
        curve->status = buf_append_text(&curve->text, text);
}

/* Returns the change without `removed` groups of heads. */
static double curve_change(const struct curve *curve, size_t removed) {
    return removed == 0 ? 0 : curve->changes[removed - 1];
}

static double curve_x(const struct curve *curve, double kept) {
    return LEFT + (RIGHT - LEFT) * kept / (double)curve->num_heads;
}

static double curve_y(const struct curve *curve, double change) {
    return BOTTOM - (BOTTOM - TOP) * change / curve->highest;
}

/* Returns the least of ..., 0.5, 1, 2, 5, 10, ... by which at most `ticks` steps reach
 * `end`, above 0. */
static double find_step(double end, double ticks) {
    static const double factors[] = {1, 2, 5, 10};
    double unit = pow(10, floor(log10(end / ticks)));
    size_t i = 0;

    while (i < 3 && factors[i] * unit * ticks < end)
        i++;
    return factors[i] * unit;
}

/* Draws both axes. */
static void draw_axes(struct curve *curve, double step) {
    for (size_t i = 0; (double)i * step <= curve->highest * 1.0001; i++) {
        double y = curve_y(curve, (double)i * step);
        curve_print(curve,
                    "<line class=\"grid\" x1=\"%d\" y1=\"%.1f\" x2=\"%d\" y2=\"%.1f\"/>"
                    "<text class=\"end\" x=\"%d\" y=\"%.1f\">%g</text>\n",
                    LEFT, y, RIGHT, y, LEFT - 8, y + 4, (double)i * step);
    }

    step = fmax(1, find_step((double)curve->num_heads, X_TICKS));
    for (size_t kept = 0; kept <= curve->num_heads; kept += (size_t)step)
        curve_print(curve, "<text class=\"middle\" x=\"%.1f\" y=\"%d\">%zu</text>\n",
                    curve_x(curve, (double)kept), BOTTOM + 20, kept);

    curve_print(curve, "<text class=\"middle\" x=\"%d\" y=\"%d\">heads kept</text>\n",
                (LEFT + RIGHT) / 2, BOTTOM + 44);
    curve_print(curve,
                "<text class=\"middle\" transform=\"translate(20 %d) rotate(-90)\">"
                "relative change of the outputs</text>\n",
                (TOP + BOTTOM) / 2);
}

static void draw_point(struct curve *curve, const char *class, size_t kept,
                       double change) {
    curve_print(curve,
                "<circle class=\"%s\" cx=\"%.1f\" cy=\"%.1f\" r=\"4\">"
                "<title>%zu head%s: %.4g</title></circle>\n",
                class, curve_x(curve, (double)kept), curve_y(curve, change), kept,
                plural_of(kept), change);
}

static void draw_points(struct curve *curve, size_t num_groups) {
    curve_print(curve, "<polyline class=\"curve\" points=\"");
    for (size_t g = 0; g <= num_groups; g++)
        curve_print(curve, "%s%.1f,%.1f", g > 0 ? " " : "",
                    curve_x(curve, (double)(g * curve->group)),
                    curve_y(curve, curve_change(curve, num_groups - g)));
    curve_print(curve, "\"/>\n");

    for (size_t g = 0; g <= num_groups; g++)
        draw_point(curve, "point", g * curve->group, curve_change(curve, num_groups - g));
}

attn_status curve_write(const char *path, const double *changes, size_t num_heads,
                        size_t group, size_t kept, double change, attn_error *ret_error) {
    struct curve curve = {.changes = changes, .num_heads = num_heads, .group = group};
    size_t num_groups = num_heads / group;
    double max = change;

    for (size_t i = 0; i < num_groups; i++)
        max = fmax(max, changes[i]);
    double step = max > 0 ? find_step(max, Y_TICKS) : 1;
    curve.highest = step * fmax(1, ceil(max / step - 0.001)); /* 1.0000001 is 1 */

    buf_init(&curve.text, SVG_MAX);
    curve.status = buf_append_text(&curve.text, svg_head);
    curve_print(&curve, "<title id=\"title\">Change of the outputs by pruning</title>\n"
                        "<rect class=\"paper\" width=\"640\" height=\"400\"/>\n");
    curve_print(&curve,
                "<text x=\"%d\" y=\"32\">%zu of %zu head%s: the outputs change by %.4g "
                "of their norm</text>\n",
                LEFT, kept, num_heads, plural_of(num_heads), change);
    draw_axes(&curve, step);
    draw_points(&curve, num_groups);
    draw_point(&curve, "kept", kept, change);
    curve_print(&curve, "</svg>\n");

    const struct output_piece piece = {curve.text.data, curve.text.size};
    attn_status status = curve.status;
    if (status == ATTN_OK)
        status = output_create_file(path, &piece, 1, ret_error);
    else
        error_set(ret_error, status, "not enough memory to draw %.200s", path);
    buf_deinit(&curve.text);
    return status;
}
