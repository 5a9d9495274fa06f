#ifndef DURATION_H
#define DURATION_H

#include <stdbool.h>
#include <stdint.h>

/*
 * parse_duration reads text such as "1h30m" or "45s" and stores the seconds.
 * Units are d, h, m and s; each number needs one. It returns false, and leaves
 * *seconds alone, for anything else.
 */
bool parse_duration(const char *text, int64_t *seconds);

#endif
