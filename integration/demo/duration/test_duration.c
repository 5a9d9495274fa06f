#include "duration.h"

#include <inttypes.h>
#include <stdio.h>

static int failures;

static void check(const char *text, bool want_ok, int64_t want)
{
	int64_t got = -1;
	bool ok = parse_duration(text, &got);

	if (ok == want_ok && (!ok || got == want)) {
		printf("ok    \"%s\"\n", text);
		return;
	}
	printf("FAIL  \"%s\": %s %" PRId64 ", want %s %" PRId64 "\n", text,
	       ok ? "accepted" : "refused", got, want_ok ? "accepted" : "refused", want);
	failures++;
}

int main(void)
{
	check("45s", true, 45);
	check("1h30m", true, 5400);
	check("2d", true, 172800);
	check("", false, 0);
	check("90", false, 0);
	check("1x", false, 0);
	check("-5s", false, 0);
	check("9223372036854775807s", true, INT64_MAX);
	check("9223372036854775808s", false, 0);
	check("106751991167301d", false, 0);
	printf("%d failed\n", failures);
	return failures != 0;
}
