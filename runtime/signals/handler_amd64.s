#include "textflag.h"

// The handler is called by the kernel, with the signal in DI and the restorer's address as return address. It may change
// every register: the kernel has saved them and the restorer brings them back.
TEXT handler<>(SB),NOSPLIT|NOFRAME|NOPTR,$0-0
	PUSHQ DI
	MOVL  ·pipeEnd(SB), DI
	MOVQ  SP, SI
	MOVL  $1, DX
	MOVL  $1, AX // write
	SYSCALL
	POPQ  DI
	RET

TEXT restorer<>(SB),NOSPLIT|NOFRAME|NOPTR,$0-0
	MOVL $15, AX // rt_sigreturn
	SYSCALL
	INT  $3

TEXT ·handlerAddress(SB),NOSPLIT,$0-8
	LEAQ handler<>(SB), AX
	MOVQ AX, ret+0(FP)
	RET

TEXT ·restorerAddress(SB),NOSPLIT,$0-8
	LEAQ restorer<>(SB), AX
	MOVQ AX, ret+0(FP)
	RET
