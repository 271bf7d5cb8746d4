//! Functions of every form: the instructions that a jump overwrites.

use super::{Case, PLAIN, PLAIN_RESULTS};

pub(super) const CASES: &[Case] = &[
    Case::code("a plain prologue", PLAIN, PLAIN_RESULTS),
    Case::code(
        "a function of eight bytes with padding behind it",
        // mov rax, rdi; add rax, 5; ret
        &[
            0x48, 0x89, 0xf8, 0x48, 0x83, 0xc0, 5, 0xc3, 0x90, 0x90, 0x90, 0x90, 0x90, 0x90, 0x90,
            0x90,
        ],
        PLAIN_RESULTS,
    ),
    Case::code(
        "a prologue with endbr64",
        // endbr64; mov rax, rdi; ret
        &[0xf3, 0x0f, 0x1e, 0xfa, 0x48, 0x89, 0xf8, 0xc3],
        [0, 7],
    ),
    Case::code(
        "a prologue with endbr64 and a frame",
        // endbr64; push rbp; mov rbp, rsp; lea rax, [rdi + 2]; pop rbp; ret
        &[0xf3, 0x0f, 0x1e, 0xfa, 0x55, 0x48, 0x89, 0xe5, 0x48, 0x8d, 0x47, 2, 0x5d, 0xc3],
        [2, 9],
    ),
    Case::code(
        "a short function with padding behind it",
        // xor eax, eax; ret; int3 x 3
        &[0x31, 0xc0, 0xc3, 0xcc, 0xcc, 0xcc],
        [0, 0],
    ),
    Case::code(
        "an operand relative to the instruction",
        // mov rax, [rip + 1]; ret; 9
        &[0x48, 0x8b, 0x05, 1, 0, 0, 0, 0xc3, 9, 0, 0, 0, 0, 0, 0, 0],
        [9, 9],
    ),
    Case::code(
        "the prologue of a driver's function",
        // push rbp; mov rbp, rsp; push r12; sub rsp, 8; cmp dword ptr [rip + 20], 0x12345678; sete al;
        // movzx eax, al; add rax, rdi; add rsp, 8; pop r12; pop rbp; ret; ...; 0x12345678
        &[
            0x55, 0x48, 0x89, 0xe5, 0x41, 0x54, 0x48, 0x83, 0xec, 8, 0x81, 0x3d, 20, 0, 0, 0, 0x78,
            0x56, 0x34, 0x12, 0x0f, 0x94, 0xc0, 0x0f, 0xb6, 0xc0, 0x48, 0x01, 0xf8, 0x48, 0x83,
            0xc4, 8, 0x41, 0x5c, 0x5d, 0xc3, 0xcc, 0xcc, 0xcc, 0x78, 0x56, 0x34, 0x12,
        ],
        [1, 8],
    ),
    Case::code(
        "a long function that begins with endbr64",
        // endbr64; push rbp; mov rbp, rsp; sub rsp, 16; lea rax, [rdi + 2]; nop; leave; ret
        &[
            0xf3, 0x0f, 0x1e, 0xfa, 0x55, 0x48, 0x89, 0xe5, 0x48, 0x83, 0xec, 16, 0x48, 0x8d, 0x47,
            2, 0x90, 0xc9, 0xc3,
        ],
        [2, 9],
    ),
    Case::code(
        "a branch in the prologue",
        // test rdi, rdi; je +6; mov eax, 1; ret; mov eax, 2; ret
        &[0x48, 0x85, 0xff, 0x74, 6, 0xb8, 1, 0, 0, 0, 0xc3, 0xb8, 2, 0, 0, 0, 0xc3],
        [2, 1],
    ),
    Case::code(
        "a branch into the prologue",
        // test edi, edi; je +0; mov rax, rdi; ret
        &[0x85, 0xff, 0x74, 0, 0x48, 0x89, 0xf8, 0xc3],
        [0, 7],
    ),
    Case::code(
        "a loop back to behind the prologue",
        // xor eax, eax; mov ecx, 3; add rax, rdi; dec ecx; jne -7; ret: three times the argument
        &[0x31, 0xc0, 0xb9, 3, 0, 0, 0, 0x48, 0x01, 0xf8, 0xff, 0xc9, 0x75, 0xf9, 0xc3],
        [0, 21],
    ),
    Case::code(
        "a call in the prologue",
        // call +4; inc rax; ret; lea rax, [rdi + 1]; ret
        &[0xe8, 4, 0, 0, 0, 0x48, 0xff, 0xc0, 0xc3, 0x48, 0x8d, 0x47, 1, 0xc3],
        [2, 9],
    ),
    Case::code(
        "a leading jump",
        // jmp +3; int3 x 3; lea rax, [rdi + 1]; ret
        &[0xeb, 3, 0xcc, 0xcc, 0xcc, 0x48, 0x8d, 0x47, 1, 0xc3],
        [1, 8],
    ),
    Case::code(
        "a leading jump by an address",
        // lea rax, [rip + 9]; jmp rax; padding; lea rax, [rdi + 4]; ret
        &[
            0x48, 0x8d, 0x05, 9, 0, 0, 0, 0xff, 0xe0, 0xcc, 0xcc, 0xcc, 0xcc, 0xcc, 0xcc, 0xcc,
            0x48, 0x8d, 0x47, 4, 0xc3,
        ],
        [4, 11],
    ),
    Case::code(
        "a jump after the first instruction",
        // xor edi, edi; jmp +5; int3 x 5; lea rax, [rdi + 3]; ret
        &[0x31, 0xff, 0xe9, 5, 0, 0, 0, 0xcc, 0xcc, 0xcc, 0xcc, 0xcc, 0x48, 0x8d, 0x47, 3, 0xc3],
        [3, 3],
    ),
    Case::code(
        "a branch that only has a short form",
        // mov cl, 1; jrcxz +6 (never: rcx is set); mov rax, rdi; ret; ...; xor eax, eax; ret
        &[0xb1, 1, 0xe3, 6, 0x48, 0x89, 0xf8, 0xc3, 0xcc, 0xcc, 0x31, 0xc0, 0xc3],
        [0, 7],
    ),
];
