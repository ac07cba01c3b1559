/* Tokens of PTX text (PTX ISA, chapter 4). */
#ifndef LEX_H
#define LEX_H

#include "ptx.h"

enum token_kind {
	TK_END, TK_WORD, /* name, opcode or register, without dots */
	TK_DOT,          /* ".global", ".L1::no_allocate": s includes the dot */
	TK_INT, TK_F32, TK_F64, TK_STRING, TK_PUNCT, /* PUNCT: s[0] */
	TK_BAD,
};

struct token {
	enum token_kind kind;
	const char *s;
	uint32_t len, line;
	uint64_t bits; /* of a number; F32 in the low half; F64 for decimals */
	bool joined;   /* no white space before it */
};

struct lexer {
	const char *at, *end;
	uint32_t line;
};

struct token lex_next(struct lexer *lx);
bool token_is(const struct token *t, const char *text);

#endif
