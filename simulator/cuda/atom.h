/* Atomic operations, in insn.sub of op_atom. */
#ifndef ATOM_H
#define ATOM_H

enum { ATOM_ADD, ATOM_MIN, ATOM_MAX, ATOM_AND, ATOM_OR, ATOM_XOR, ATOM_EXCH, ATOM_CAS, ATOM_INC,
       ATOM_DEC };

#endif
