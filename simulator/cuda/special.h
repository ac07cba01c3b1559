/* Special registers (PTX ISA, chapter 10). */
#ifndef SPECIAL_H
#define SPECIAL_H

#include "ptx.h"

int special_named(const char *name); /* -1: there is none */
bool special_is_wide(int special);
op_fn op_special; /* in->sub: which, in->d: where to */

#endif
