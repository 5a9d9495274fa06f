#include "textflag.h"

// The interpreter that runs an init program. It is never called by Go: image.go copies its bytes into the ELF image
// that the host executes, so it may use no stack, no Go register convention and no address but the three fixed ones.
//
// R12 table base, R13 current op. An op is 96 bytes; see op in program.go for the offsets used here.

#define TABLE  0x1000000
#define REPORT 0x41000000

#define LOADARG(n, off, reg) \
	MOVQ  off(R13), reg   \
	TESTB $(1<<n), 64(R13) \
	JEQ   2(PC)           \
	MOVLQSX (reg), reg

TEXT ·interpreter(SB),NOSPLIT|NOFRAME|NOPTR,$0-0
	MOVQ $TABLE, R12
	MOVQ R12, R13

loop:
	LOADARG(0, 8, DI)
	LOADARG(1, 16, SI)
	LOADARG(2, 24, DX)
	LOADARG(3, 32, R10)
	LOADARG(4, 40, R8)
	LOADARG(5, 48, R9)
	MOVQ 0(R13), AX
	TESTQ AX, AX
	JLT  check
	SYSCALL
	CMPQ AX, $-4095
	JCC  failed
	MOVQ 56(R13), DX
	TESTQ DX, DX
	JEQ  expect
	MOVL AX, (DX)

expect:
	TESTB $1, 65(R13)
	JEQ  ok
	CMPQ AX, 80(R13)
	JEQ  ok
	TESTB $2, 65(R13)
	JNE  other
	MOVQ $71, AX
	JMP  report

	// A check compares eight bytes of memory: (*DI & SI) == DX, or else errno R10.
check:
	MOVQ (DI), AX
	ANDQ SI, AX
	CMPQ AX, DX
	JEQ  ok
	TESTB $2, 65(R13)
	JNE  other
	MOVQ R10, AX
	JMP  report

ok:
	MOVL 68(R13), DX
	JMP  next

other:
	MOVL 72(R13), DX

next:
	IMULQ $96, DX
	LEAQ (R12)(DX*1), R13
	JMP  loop

failed:
	NEGQ AX
	CMPQ AX, $4
	JEQ  loop
	CMPQ AX, $11
	JNE  judge
	TESTB $4, 65(R13)
	JNE  loop

judge:
	XORL CX, CX

tolerated:
	MOVBLZX 88(R13)(CX*1), DX
	TESTL DX, DX
	JEQ  report
	CMPL DX, $255
	JEQ  other
	CMPL DX, AX
	JEQ  other
	INCQ CX
	CMPQ CX, $8
	JNE  tolerated

report:
	MOVQ $REPORT, SI
	MOVQ R13, 0(SI)
	MOVQ AX, 8(SI)
	MOVLQSX 16(SI), DI
	MOVL $16, DX
	MOVL $1, AX
	SYSCALL
	MOVL $1, DI
	MOVL $231, AX
	SYSCALL

	// exit_group refused by a filter: an illegal instruction ends the process all the same.
	BYTE $0x0f; BYTE $0x0b
	BYTE $0x61; BYTE $0x67; BYTE $0x65; BYTE $0x6e; BYTE $0x74; BYTE $0x2d; BYTE $0x76; BYTE $0x6d
	RET

// func interpreterAddress() uintptr
TEXT ·interpreterAddress(SB),NOSPLIT,$0-8
	LEAQ ·interpreter(SB), AX
	MOVQ AX, ret+0(FP)
	RET
