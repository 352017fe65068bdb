/* SPDX-License-Identifier: Apache-2.0 */
/* plot.c: draws the steps: a line for each percentile, over what was served, with latency
 * on a logarithmic axis. Colours follow the reader's scheme. */
#include "bench/http/plot.h"

#include <limits.h>
#include <math.h>

#define LEFT   60.0
#define RIGHT  640.0
#define TOP    50.0
#define BOTTOM 350.0

static const char head[] =
    "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 720 400\" width=\"720\">\n"
    "<style>\n"
    "  text { font: 12px \"DejaVu Sans\", Verdana, sans-serif; fill: #24292f }\n"
    "  .ground { fill: #fff } .grid { stroke: #d8dee4 }\n"
    "  .q0 { color: #0969da } .q1 { color: #2c8f7b } .q2 { color: #d4752c }\n"
    "  .q3 { color: #7d55c7 } .q4 { color: #b0568a }\n"
    "  polyline, circle { stroke: currentColor; stroke-width: 2; fill: none }\n"
    "  circle, text[class] { fill: currentColor } circle.failed { fill: none }\n"
    "  @media (prefers-color-scheme: dark) {\n"
    "    text { fill: #e6edf3 } .ground { fill: #0d1117 } .grid { stroke: #30363d }\n"
    "  }\n</style>\n<rect class=\"ground\" width=\"720\" height=\"400\"/>\n";

/* The axes show 0 to x_max, and 10^low to 10^high ms. */
struct axes {
    double x_max;
    int low, high;
};

static double place_x(const struct axes *axes, double served) {
    return LEFT + (RIGHT - LEFT) * served / axes->x_max;
}

static double place_y(const struct axes *axes, double ms) {
    return BOTTOM - (BOTTOM - TOP) * (log10(ms) - axes->low) / (axes->high - axes->low);
}

/* Whether a percentile can be drawn: it is not NAN, and has a logarithm. */
static bool is_known(const struct load_point *point, size_t q) {
    return point->ms[q] > 0;
}

static struct axes fit_axes(const struct load_point *points, size_t count) {
    struct axes axes = {.x_max = 0, .low = INT_MAX, .high = INT_MIN};

    for (size_t i = 0; i < count; i++) {
        axes.x_max = fmax(axes.x_max, points[i].served);
        for (size_t q = 0; q < LOAD_QUANTILES; q++) {
            if (!is_known(&points[i], q))
                continue;
            int below = (int)floor(log10(points[i].ms[q]));
            int above = (int)ceil(log10(points[i].ms[q]));
            axes.low = below < axes.low ? below : axes.low;
            axes.high = above > axes.high ? above : axes.high;
        }
    }
    axes.x_max = axes.x_max > 0 ? axes.x_max : 1;
    if (axes.low > axes.high) /* nothing is known */
        axes.low = axes.high = 0;
    axes.high += axes.low == axes.high;
    return axes;
}

static void write_text(struct buf *svg, double x, double y, const char *anchor,
                       const char *text) {
    buf_append_format(svg, "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"%s\">", x, y,
                      anchor);
    for (const char *c = text; *c != '\0'; c++) {
        if (*c == '<' || *c == '>' || *c == '&')
            buf_append_format(svg, "&#%d;", *c);
        else
            buf_append(svg, c, 1);
    }
    buf_append_text(svg, "</text>\n");
}

static void write_number(struct buf *svg, double x, double y, const char *anchor,
                         double number) {
    buf_append_format(svg,
                      "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"%s\">%.10g</text>\n", x,
                      y, anchor, number);
}

static void draw_line(struct buf *svg, double x1, double y1, double x2, double y2) {
    buf_append_format(svg,
                      "<line class=\"grid\" x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" "
                      "y2=\"%.1f\"/>\n",
                      x1, y1, x2, y2);
}

static void draw_axes(const struct axes *axes, struct buf *svg) {
    /* Between 3 and 8 lines of 1, 2 or 5 times a power of ten. */
    double power = pow(10, floor(log10(axes->x_max / 3)));
    double times = axes->x_max / 3 / power;
    double step = power * (times < 2 ? 1 : (times < 5 ? 2 : 5));

    for (int i = 0; i * step <= axes->x_max; i++) {
        double x = place_x(axes, i * step);
        draw_line(svg, x, TOP, x, BOTTOM);
        write_number(svg, x, BOTTOM + 18, "middle", i * step);
    }
    for (int decade = axes->low; decade <= axes->high; decade++) {
        double ms = pow(10, decade), y = place_y(axes, ms);
        draw_line(svg, LEFT, y, RIGHT, y);
        write_number(svg, LEFT - 6, y + 4, "end", ms);
    }
    write_text(svg, (LEFT + RIGHT) / 2, BOTTOM + 38, "middle",
               "requests served a second");
    write_text(svg, 10, TOP - 10, "start", "latency, ms");
}

static void draw_quantile(const struct axes *axes, const struct load_point *points,
                          size_t count, size_t q, struct buf *svg) {
    buf_append_format(svg, "<polyline class=\"q%zu\" points=\"", q);
    for (size_t i = 0; i < count; i++) {
        if (!is_known(&points[i], q))
            continue;
        buf_append_format(svg, "%.1f,%.1f ", place_x(axes, points[i].served),
                          place_y(axes, points[i].ms[q]));
    }
    buf_append_text(svg, "\"/>\n");
    for (size_t i = 0; i < count; i++) {
        if (is_known(&points[i], q))
            buf_append_format(
                svg, "<circle class=\"q%zu %s\" cx=\"%.1f\" cy=\"%.1f\" r=\"3\"/>\n", q,
                points[i].clean ? "" : "failed", place_x(axes, points[i].served),
                place_y(axes, points[i].ms[q]));
    }
    buf_append_format(svg, "<text class=\"q%zu\" x=\"%zu\" y=\"40\">%s%%</text>\n", q,
                      400 + 50 * q, load_share_names[q]);
}

void load_plot(const struct load_point *points, size_t count, const char *title,
               struct buf *svg) {
    struct axes axes = fit_axes(points, count);

    buf_append_text(svg, head);
    write_text(svg, 10, 22, "start", title);
    draw_axes(&axes, svg);
    for (size_t q = 0; q < LOAD_QUANTILES; q++)
        draw_quantile(&axes, points, count, q, svg);
    buf_append_text(svg, "</svg>\n");
}
