/* Kinds of barrier reductions, votes, shuffles and reductions, in insn.sub. */
#ifndef COLLECTIVE_H
#define COLLECTIVE_H

enum { RED_POPC, RED_AND, RED_OR };
enum { VOTE_ALL, VOTE_ANY, VOTE_UNI, VOTE_BALLOT };
enum { SHFL_UP, SHFL_DOWN, SHFL_BFLY, SHFL_IDX };
enum { REDUX_ADD, REDUX_MIN, REDUX_MAX, REDUX_AND, REDUX_OR, REDUX_XOR };

#endif
