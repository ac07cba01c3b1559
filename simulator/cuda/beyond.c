/*
 * Valid PTX that the interpreter does not execute: saying "invalid" would be wrong. What is
 * listed here and what is served is held against the ISA by simulator/cudatest/testdata/isa.txt.
 */
#include "parse.h"

#include <string.h>

/* Instructions by their first word; with a second one only where that is among their modifiers. */
static const struct { const char *base, *modifier; } instructions[] = {
	/* textures, surfaces, the stack */
	{"tex", 0}, {"tld4", 0}, {"txq", 0}, {"istypep", 0}, {"suld", 0}, {"sust", 0}, {"sured", 0}, {"suq", 0},
	{"alloca", 0}, {"stacksave", 0}, {"stackrestore", 0},
	/* video */
	{"vadd", 0}, {"vsub", 0}, {"vabsdiff", 0}, {"vmin", 0}, {"vmax", 0}, {"vshl", 0}, {"vshr", 0}, {"vmad", 0},
	{"vset", 0}, {"vadd2", 0}, {"vsub2", 0}, {"vavrg2", 0}, {"vabsdiff2", 0}, {"vmin2", 0}, {"vmax2", 0},
	{"vset2", 0}, {"vadd4", 0}, {"vsub4", 0}, {"vavrg4", 0}, {"vabsdiff4", 0}, {"vmin4", 0}, {"vmax4", 0},
	{"vset4", 0},
	/* matrices */
	{"wmma", 0}, {"stmatrix", 0}, {"movmatrix", 0}, {"wgmma", 0}, {"tcgen05", 0}, {"mma", ".sp"},
	{"ldmatrix", ".m16n16"}, {"ldmatrix", ".m8n16"},
	/* asynchronous copies and their barriers, clusters */
	{"cp", ".bulk"}, {"cp", ".reduce"}, {"cp", ".mbarrier"}, {"mbarrier", 0}, {"setmaxnreg", 0},
	{"griddepcontrol", 0}, {"mapa", 0}, {"getctarank", 0}, {"multimem", 0}, {"tensormap", 0},
	{"clusterlaunchcontrol", 0}, {"barrier", ".cluster"}, {"fence", ".proxy"}, {"fence", ".mbarrier_init"},
	{"st", ".async"}, {"red", ".async"}, {"ld", ".shared::cluster"}, {"st", ".shared::cluster"},
	{"atom", ".shared::cluster"}, {"red", ".shared::cluster"}, {"isspacep", ".shared::cluster"},
	{"cvta", ".shared::cluster"}, {"st", ".bulk"},
	/* cache policies */
	{"createpolicy", 0}, {"applypriority", 0}, {"discard", 0}, {"prefetch", ".tensormap"},
	{"ld", ".L2::cache_hint"}, {"st", ".L2::cache_hint"}, {"atom", ".L2::cache_hint"}, {"red", ".L2::cache_hint"},
	{"cp", ".L2::cache_hint"},
	/* arithmetic */
	{"add", ".u16x2"}, {"add", ".s16x2"}, {"min", ".u16x2"}, {"min", ".s16x2"}, {"max", ".u16x2"},
	{"max", ".s16x2"}, {"min", ".relu"}, {"max", ".relu"}, {"fma", ".oob"}, {"lop3", ".and"}, {"lop3", ".or"},
	{"cvt", ".e4m3x2"}, {"cvt", ".e5m2x2"},
};

/* Special registers, and directives. */
static const char *const names[] = {
	"%is_explicit_cluster", "%aggr_smem_size", "%current_graph_exec", "%reserved_smem_offset_begin",
	"%reserved_smem_offset_end", "%reserved_smem_offset_cap", "%reserved_smem_offset_0", "%reserved_smem_offset_1",
	"%pm0_64", "%pm1_64", "%pm2_64", "%pm3_64", "%pm4_64", "%pm5_64", "%pm6_64", "%pm7_64",
	".alias", ".texref", ".samplerref", ".surfref",
};

static _Noreturn void refuse(struct parser *p, uint32_t line, const char *what, size_t len)
{
	ptx_fail(p->m, line, PTX_NOT_SUPPORTED, "the simulator does not execute '%.*s'", len > 100 ? 100 : (int)len, what);
}

void refuse_instruction(struct parser *p, const struct statement *s)
{
	for (size_t i = 0; i < sizeof instructions / sizeof *instructions; i++) {
		if (instructions[i].base[0] != s->word[0][0] || strcmp(instructions[i].base, s->word[0]) != 0)
			continue;
		bool listed = !instructions[i].modifier;

		for (uint32_t k = 1; k < s->nwords && !listed; k++)
			listed = strcmp(instructions[i].modifier, s->word[k]) == 0;
		if (listed)
			refuse(p, s->line, s->opcode, strlen(s->opcode));
	}
}

void refuse_name(struct parser *p, uint32_t line, const char *name, size_t len)
{
	for (size_t i = 0; i < sizeof names / sizeof *names; i++)
		if (strlen(names[i]) == len && memcmp(names[i], name, len) == 0)
			refuse(p, line, name, len);
}
