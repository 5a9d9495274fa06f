#include "textflag.h"

#define SYS_madvise 28
#define SYS_prctl 157
#define PR_SET_TIMERSLACK 29
#define PR_GET_TIMERSLACK 30
#define MADV_POPULATE_READ 22
#define MADV_POPULATE_WRITE 23
#define pageMask 4095
#define monitor 10000000

// At a program's entry the stack pointer is at argc and nothing else is of use (System V ABI, process initialization; a
// static program has no function to register at exit). A system call leaves all registers but AX, CX and R11 as they are.
TEXT ·start(SB), NOSPLIT|NOFRAME, $0
	MOVQ $SYS_prctl, AX
	MOVQ $PR_GET_TIMERSLACK, DI
	SYSCALL
	MOVQ AX, ·inherited(SB)
	MOVQ $SYS_prctl, AX
	MOVQ $PR_SET_TIMERSLACK, DI
	MOVQ $monitor, SI
	SYSCALL

	// Code, constants, and the tables behind them.
	MOVQ $SYS_madvise, AX
	MOVQ $runtime·text(SB), DI
	ANDQ $~pageMask, DI
	MOVQ $runtime·epclntab(SB), SI
	SUBQ DI, SI
	MOVQ $MADV_POPULATE_READ, DX
	SYSCALL

	// Variables; behind ebss are those of the Go runtime that it touches little of.
	MOVQ $SYS_madvise, AX
	MOVQ $runtime·noptrdata(SB), DI
	ANDQ $~pageMask, DI
	MOVQ $runtime·ebss(SB), SI
	SUBQ DI, SI
	MOVQ $MADV_POPULATE_WRITE, DX
	SYSCALL
	JMP  _rt0_amd64_linux(SB)
