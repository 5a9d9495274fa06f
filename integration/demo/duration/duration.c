#include "duration.h"

#include <ctype.h>

static int64_t unit_seconds(char unit)
{
	switch (unit) {
	case 'd':
		return 86400;
	case 'h':
		return 3600;
	case 'm':
		return 60;
	case 's':
		return 1;
	default:
		return 0;
	}
}

bool parse_duration(const char *text, int64_t *seconds)
{
	int64_t total = 0;

	if (*text == '\0')
		return false;
	while (*text != '\0') {
		int64_t number = 0;

		if (!isdigit((unsigned char)*text))
			return false;
		for (; isdigit((unsigned char)*text); text++)
			number = number * 10 + (*text - '0');
		if (unit_seconds(*text) == 0)
			return false;
		total += number * unit_seconds(*text);
		text++;
	}
	*seconds = total;
	return true;
}
