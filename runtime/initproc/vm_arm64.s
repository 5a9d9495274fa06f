#include "textflag.h"

// The interpreter that runs an init program, for arm64; vm_amd64.s explains it.
//
// R19 table base, R20 current op, R21 flag bytes.

#define TABLE  0x1000000
#define REPORT 0x41000000

#define LOADARG(n, off, reg) \
	MOVD off(R20), reg    \
	TBZ  $n, R21, 2(PC)   \
	MOVW (reg), reg

TEXT ·interpreter(SB),NOSPLIT|NOFRAME|NOPTR,$0-0
	MOVD $TABLE, R19
	MOVD R19, R20

loop:
	MOVBU 64(R20), R21
	LOADARG(0, 8, R0)
	LOADARG(1, 16, R1)
	LOADARG(2, 24, R2)
	LOADARG(3, 32, R3)
	LOADARG(4, 40, R4)
	LOADARG(5, 48, R5)
	MOVBU 65(R20), R22
	MOVD 0(R20), R8
	TBNZ $63, R8, check
	SVC
	CMN  $4095, R0
	BCS  failed
	MOVD 56(R20), R2
	CBZ  R2, expect
	MOVW R0, (R2)

expect:
	TBZ  $0, R22, ok
	MOVD 80(R20), R2
	CMP  R2, R0
	BEQ  ok
	TBNZ $1, R22, other
	MOVD $71, R0
	B    report

check:
	MOVD (R0), R4
	AND  R1, R4, R4
	CMP  R2, R4
	BEQ  ok
	TBNZ $1, R22, other
	MOVD R3, R0
	B    report

ok:
	MOVWU 68(R20), R2
	B    next

other:
	MOVWU 72(R20), R2

next:
	MOVD $96, R3
	MADD R3, R19, R2, R20
	B    loop

failed:
	NEG  R0, R0
	CMP  $4, R0
	BEQ  loop
	CMP  $11, R0
	BNE  judge
	TBNZ $2, R22, loop

judge:
	MOVD ZR, R3
	ADD  $88, R20, R4

tolerated:
	MOVBU (R4)(R3), R2
	CBZ  R2, report
	CMP  $255, R2
	BEQ  other
	CMP  R0, R2
	BEQ  other
	ADD  $1, R3, R3
	CMP  $8, R3
	BNE  tolerated

report:
	MOVD $REPORT, R1
	MOVD R20, 0(R1)
	MOVD R0, 8(R1)
	MOVW 16(R1), R0
	MOVD $16, R2
	MOVD $64, R8
	SVC
	MOVD $1, R0
	MOVD $94, R8
	SVC

	// udf, then the marker that image_unsafe.go looks for.
	WORD $0x00000000
	WORD $0x6e656761
	WORD $0x6d762d74
	RET

// func interpreterAddress() uintptr
TEXT ·interpreterAddress(SB),NOSPLIT,$0-8
	MOVD $·interpreter(SB), R0
	MOVD R0, ret+0(FP)
	RET
