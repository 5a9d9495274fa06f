#include "textflag.h"

#define SYS_madvise 233
#define SYS_prctl 167
#define PR_SET_TIMERSLACK 29
#define PR_GET_TIMERSLACK 30
#define MADV_POPULATE_READ 22
#define MADV_POPULATE_WRITE 23
#define pageMask 4095
#define monitor 10000000

// As for amd64; a system call leaves all registers but R0 as they are. Where the kernel's pages have 16 or 64 KiB, it refuses
// an address between them (EINVAL), and leaves the section to faults.
TEXT ·start(SB), NOSPLIT|NOFRAME, $0
	MOVD $SYS_prctl, R8
	MOVD $PR_GET_TIMERSLACK, R0
	SVC
	MOVD R0, ·inherited(SB)
	MOVD $SYS_prctl, R8
	MOVD $PR_SET_TIMERSLACK, R0
	MOVD $monitor, R1
	SVC

	MOVD $SYS_madvise, R8
	MOVD $runtime·text(SB), R0
	AND  $~pageMask, R0
	MOVD $runtime·epclntab(SB), R1
	SUB  R0, R1
	MOVD $MADV_POPULATE_READ, R2
	SVC

	MOVD $SYS_madvise, R8
	MOVD $runtime·noptrdata(SB), R0
	AND  $~pageMask, R0
	MOVD $runtime·ebss(SB), R1
	SUB  R0, R1
	MOVD $MADV_POPULATE_WRITE, R2
	SVC
	B    _rt0_arm64_linux(SB)
