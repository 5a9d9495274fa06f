#include "textflag.h"

// The handler is called by the kernel, with the signal in R0 and the address of the vDSO's rt_sigreturn in LR. It may
// change every register: the kernel has saved them.
TEXT handler<>(SB),NOSPLIT|NOFRAME|NOPTR,$0-0
	SUB  $16, RSP
	MOVD R0, (RSP)
	MOVW ·pipeEnd(SB), R0
	MOVD RSP, R1
	MOVD $1, R2
	MOVD $64, R8 // write
	SVC
	ADD  $16, RSP
	RET

TEXT ·handlerAddress(SB),NOSPLIT,$0-8
	MOVD $handler<>(SB), R0
	MOVD R0, ret+0(FP)
	RET

// restorerAddress is none: the kernel has its own.
TEXT ·restorerAddress(SB),NOSPLIT,$0-8
	MOVD ZR, ret+0(FP)
	RET
