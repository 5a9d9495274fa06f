#include "textflag.h"

#define SYS_prctl 157
#define PR_SET_TIMERSLACK 29
#define PR_GET_TIMERSLACK 30
#define monitor 10000000

// At a program's entry the stack pointer is at argc and nothing else is of use (System V ABI, process initialization; a
// static program has no function to register at exit). A system call leaves all registers but AX, CX and R11 as they are.
TEXT ·entry(SB), NOSPLIT|NOFRAME, $0
	MOVQ $SYS_prctl, AX
	MOVQ $PR_GET_TIMERSLACK, DI
	SYSCALL
	MOVQ AX, ·inherited(SB)
	MOVQ $SYS_prctl, AX
	MOVQ $PR_SET_TIMERSLACK, DI
	MOVQ $monitor, SI
	SYSCALL
	JMP  _rt0_amd64_linux(SB)
