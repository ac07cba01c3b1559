/* The tokeniser. It never reads past its end and needs no NUL there. */
#include "lex.h"

#include <stdlib.h>
#include <string.h>

static bool is_digit(char c) { return c >= '0' && c <= '9'; }

static bool is_word(char c)
{
	return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || is_digit(c) || c == '_' || c == '$';
}

static int hex_value(char c)
{
	if (is_digit(c))
		return c - '0';
	if (c >= 'a' && c <= 'f')
		return c - 'a' + 10;
	if (c >= 'A' && c <= 'F')
		return c - 'A' + 10;
	return -1;
}

static bool skip_blanks(struct lexer *lx)
{
	const char *start = lx->at;

	while (lx->at < lx->end) {
		char c = *lx->at;

		if (c == '\n') {
			lx->line++;
			lx->at++;
		} else if (c == ' ' || c == '\t' || c == '\r' || c == '\f' || c == '\v') {
			lx->at++;
		} else if (c == '/' && lx->end - lx->at > 1 && lx->at[1] == '/') {
			while (lx->at < lx->end && *lx->at != '\n')
				lx->at++;
		} else if (c == '/' && lx->end - lx->at > 1 && lx->at[1] == '*') {
			lx->at += 2;
			while (lx->end - lx->at > 1 && !(lx->at[0] == '*' && lx->at[1] == '/')) {
				if (*lx->at == '\n')
					lx->line++;
				lx->at++;
			}
			lx->at = lx->end - lx->at > 1 ? lx->at + 2 : lx->end;
		} else {
			break;
		}
	}
	return lx->at != start;
}

/* Digits of one base up to 64 bits; more is no number of PTX. */
static bool read_digits(struct lexer *lx, unsigned base, int most, uint64_t *out)
{
	uint64_t v = 0;
	int n = 0;

	for (; lx->at < lx->end; lx->at++, n++) {
		int d = hex_value(*lx->at);

		if (d < 0 || (unsigned)d >= base)
			break;
		if (v > (UINT64_MAX - (unsigned)d) / base)
			return false;
		v = v * base + (unsigned)d;
	}
	*out = v;
	return n > 0 && (most == 0 || n == most);
}

static enum token_kind read_decimal_float(struct lexer *lx, uint64_t *bits)
{
	char text[64];
	size_t n = 0;
	char *rest;
	double value;

	while (lx->at < lx->end && n < sizeof text - 1) {
		char c = *lx->at;
		bool sign = (c == '+' || c == '-') && n > 0 && (text[n - 1] == 'e' || text[n - 1] == 'E');

		if (!is_digit(c) && c != '.' && c != 'e' && c != 'E' && !sign)
			break;
		text[n++] = c;
		lx->at++;
	}
	text[n] = 0;
	value = strtod(text, &rest);
	if (*rest)
		return TK_BAD;
	memcpy(bits, &value, sizeof value);
	return TK_F64;
}

static enum token_kind read_number(struct lexer *lx, uint64_t *bits)
{
	const char *s = lx->at;
	size_t left = (size_t)(lx->end - s);
	bool ok;

	if (left > 2 && s[0] == '0' && (s[1] == 'f' || s[1] == 'F')) {
		lx->at += 2;
		return read_digits(lx, 16, 8, bits) ? TK_F32 : TK_BAD;
	}
	if (left > 2 && s[0] == '0' && (s[1] == 'd' || s[1] == 'D')) {
		lx->at += 2;
		return read_digits(lx, 16, 16, bits) ? TK_F64 : TK_BAD;
	}
	if (left > 2 && s[0] == '0' && (s[1] == 'x' || s[1] == 'X')) {
		lx->at += 2;
		ok = read_digits(lx, 16, 0, bits);
	} else if (left > 2 && s[0] == '0' && (s[1] == 'b' || s[1] == 'B')) {
		lx->at += 2;
		ok = read_digits(lx, 2, 0, bits);
	} else {
		const char *q = s;

		while (q < lx->end && is_digit(*q))
			q++;
		if (q < lx->end && (*q == '.' || *q == 'e' || *q == 'E'))
			return read_decimal_float(lx, bits);
		ok = read_digits(lx, s[0] == '0' ? 8 : 10, 0, bits);
	}
	if (lx->at < lx->end && *lx->at == 'U')
		lx->at++;
	if (lx->at < lx->end && is_word(*lx->at))
		ok = false;
	return ok ? TK_INT : TK_BAD;
}

struct token lex_next(struct lexer *lx)
{
	struct token t = {.kind = TK_END};

	t.joined = !skip_blanks(lx);
	t.s = lx->at;
	t.line = lx->line;
	if (lx->at >= lx->end || *lx->at == 0)
		return t;
	char c = *lx->at;
	char second = lx->end - lx->at > 1 ? lx->at[1] : 0;

	if (is_digit(c)) {
		t.kind = read_number(lx, &t.bits);
	} else if (is_word(c) || (c == '%' && is_word(second))) {
		t.kind = TK_WORD;
		lx->at++;
		while (lx->at < lx->end && is_word(*lx->at))
			lx->at++;
	} else if (c == '.' && is_word(second)) {
		t.kind = TK_DOT;
		lx->at++;
		while (lx->at < lx->end &&
		       (is_word(*lx->at) ||
		        (lx->end - lx->at > 1 && lx->at[0] == ':' && lx->at[1] == ':' && ++lx->at)))
			lx->at++;
	} else if (c == '"') {
		t.kind = TK_STRING;
		lx->at++;
		while (lx->at < lx->end && *lx->at != '"' && *lx->at != '\n')
			lx->at++;
		if (lx->at >= lx->end || *lx->at != '"')
			t.kind = TK_BAD;
		else
			lx->at++;
	} else {
		t.kind = strchr("{}[]()<>,;:=+-!@|*/&^~?%", c) ? TK_PUNCT : TK_BAD;
		lx->at++;
	}
	t.len = (uint32_t)(lx->at - t.s);
	return t;
}

bool token_is(const struct token *t, const char *text)
{
	size_t n = strlen(text);

	return (t->kind == TK_WORD || t->kind == TK_DOT || t->kind == TK_PUNCT) && t->len == n &&
	       memcmp(t->s, text, n) == 0;
}
