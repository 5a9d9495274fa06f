#!/bin/sh
# What a coding agent does, as a script: it reads the issue, reproduces it, edits the code, runs the tests and commits.
# It runs unmodified inside and outside of a container.
set -eu
step() { printf '\n[agent] %s\n' "$*"; }

step "who and where am I?"
echo "uid $(id -u), in $PWD, as process $$ of $(ls -d /proc/[0-9]* | wc -l); home $HOME holds $(ls -A "$HOME" | wc -l) files"

step "the issue"
sed 's/^/    /' ISSUE.md

step "reproduce it: make test must fail"
if make -s test >/tmp/before.log 2>&1; then
	echo "the tests pass already, nothing to do" >&2
	exit 1
fi
grep FAIL /tmp/before.log

step "edit duration.c"
cat >/tmp/fix.patch <<'PATCH'
--- a/duration.c
+++ b/duration.c
@@ -29,11 +29,16 @@
 
 		if (!isdigit((unsigned char)*text))
 			return false;
-		for (; isdigit((unsigned char)*text); text++)
-			number = number * 10 + (*text - '0');
+		for (; isdigit((unsigned char)*text); text++) {
+			if (__builtin_mul_overflow(number, 10, &number) ||
+			    __builtin_add_overflow(number, *text - '0', &number))
+				return false;
+		}
 		if (unit_seconds(*text) == 0)
 			return false;
-		total += number * unit_seconds(*text);
+		if (__builtin_mul_overflow(number, unit_seconds(*text), &number) ||
+		    __builtin_add_overflow(total, number, &total))
+			return false;
 		text++;
 	}
 	*seconds = total;
PATCH
git apply /tmp/fix.patch
git diff --stat

step "run the tests"
make -s test

step "commit"
make -s clean
git -c user.name=agent -c user.email=agent@example.invalid commit -qam 'duration: refuse what does not fit'
git log --oneline
