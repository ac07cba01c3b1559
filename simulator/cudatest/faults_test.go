package cudatest

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const header = ".version 7.0\n.target sm_50\n.address_size 64\n"

// entry is a kernel of one pointer parameter, loaded into %rd0, with registers of every kind.
func entry(body string) string {
	return header + `
.extern .func  (.param .b32 func_retval0) vprintf(.param .b64 a, .param .b64 b);
.extern .func __assertfail(.param .b64 m, .param .b64 f, .param .b32 l, .param .b64 n, .param .b64 s);
.global .align 4 .u32 variable = 7;
.global .align 1 .b8 text[5] = {104, 105, 10, 0, 0};
.const .align 4 .u32 constant = 9;
.visible .entry k(.param .u64 out)
{
	.reg .pred %p<9>;
	.reg .b16 %h<9>;
	.reg .b32 %r<9>;
	.reg .f32 %f<9>;
	.reg .b64 %rd<9>;
	.reg .f64 %fd<9>;
	ld.param.u64 %rd0, [out];
` + body + "\n\tret;\n}\n"
}

func TestInvalidPTXIsRefusedWithItsLine(t *testing.T) {
	d := open(t, "h100-sxm")
	for name, c := range map[string]struct {
		ptx, log string
		err      error
	}{
		"unknown opcode":          {entry("\tfrobnicate.u32 %r1, %r2;"), "line 19; error   : Not a name of any known instruction: 'frobnicate.u32'", invalidPTX},
		"unknown modifier":        {entry("\tadd.wrong.u32 %r1, %r2, %r3;"), "line 19", invalidPTX},
		"a type too many":         {entry("\tadd.u32.u32 %r1, %r2, %r3;"), "line 19", invalidPTX},
		"operands missing":        {entry("\tadd.u32 %r1, %r2;"), "line 19", invalidPTX},
		"wrong width":             {entry("\tadd.u32 %r1, %r2, %rd3;"), "Arguments mismatch", invalidPTX},
		"float in an integer sum": {entry("\tadd.u32 %r1, %r2, %f3;"), "Arguments mismatch", invalidPTX},
		"rounding missing":        {entry("\tfma.f32 %f1, %f2, %f3, %f4;"), "Rounding modifier required", invalidPTX},
		"unknown register":        {entry("\tadd.u32 %r1, %r2, %r9;"), "Unknown symbol '%r9'", invalidPTX},
		"unknown label":           {entry("\tbra nowhere;"), "Label 'nowhere' is not defined", invalidPTX},
		"unknown variable":        {entry("\tld.global.u32 %r1, [nothing];"), "Unknown symbol", invalidPTX},
		"unknown function":        {entry("\tcall nothing;"), "Unknown symbol 'nothing'", invalidPTX},
		"undefined function":      {header + ".extern .func f;\n.entry k { call f; ret; }", "Unresolved extern function 'f'", invalidPTX},
		"unfinished":              {header + ".visible .entry k(", "end of the text", invalidPTX},
		"no closing brace":        {header + ".visible .entry k() { ret;", "end of the text", invalidPTX},
		"strange character":       {entry("\t`;"), "line 19", invalidPTX},
		"a store to constants":    {entry("\tst.const.u32 [constant], 1;"), "line 19", invalidPTX},
		"wrong state space":       {entry("\tld.shared.u32 %r1, [variable];"), "State space mismatch", invalidPTX},
		"label twice":             {entry("\tA:\n\tA:"), "'A' is defined twice", invalidPTX},
		"too much shared memory":  {header + ".shared .b8 big[100000];\n.entry k { ret; }", "49152", invalidPTX},
		"newer PTX":               {strings.Replace(entry(""), "7.0", "9.9", 1), "Unsupported .version 9.9", newerPTX},
		"newer architecture":      {strings.Replace(entry(""), "sm_50", "sm_100", 1), "sm_100", noBinary},
		"another architecture's":  {strings.Replace(entry(""), "sm_50", "sm_80a", 1), "sm_80a", noBinary},
		"beyond the simulator":    {entry("\ttex.1d.v4.f32.s32 {%f1,%f2,%f3,%f4}, [variable, {%r1}];"), "'tex.1d.v4.f32.s32'", notSupported},
		"no threads are named":    {strings.Replace(entry("\tvote.ballot.b32 %r1, %p1;"), "sm_50", "sm_70", 1), "without '.sync'", invalidPTX},
		"what only a GPU does":    {entry("\tmovmatrix.sync.aligned.m8n8.trans.b16 %r1, %r2;"), "does not execute", notSupported},
		"no PTX":                  {"hello, world", "", invalidImage},
		"nothing":                 {"", "", invalidImage},
		"machine code":            {"\x7fELF\x02\x01\x01", "", noBinary},
	} {
		t.Run(name, func(t *testing.T) {
			_, log, err := d.in(t).compile(c.ptx)
			require.Equal(t, c.err, err, log)
			require.Contains(t, log, c.log)
		})
	}
}

func TestKernelFaultIsTheErrorOfEveryLaterCall(t *testing.T) {
	l := open(t, "h100-sxm").lib
	for name, c := range map[string]struct {
		body string
		err  error
	}{
		"load beyond an allocation":      {"\tld.global.u32 %r1, [%rd0+256];", illegalAddress},
		"vector load across its end":     {"\tld.global.v4.u32 {%r1,%r2,%r3,%r4}, [%rd0+256];", illegalAddress},
		"store before an allocation":     {"\tst.global.u32 [%rd0+-4], 1;", illegalAddress},
		"null pointer":                   {"\tmov.u64 %rd1, 0;\n\tld.u32 %r1, [%rd1];", illegalAddress},
		"a pointer of the host":          {"\tmov.u64 %rd1, 0x7fff00000000;\n\tld.u32 %r1, [%rd1];", illegalAddress},
		"atomic beyond an allocation":    {"\tatom.global.add.u32 %r1, [%rd0+256], 1;", illegalAddress},
		"shared memory that is not":      {"\tmov.u32 %r1, 60000;\n\tld.shared.u32 %r2, [%r1];", illegalAddress},
		"local memory that is not":       {"\tmov.u32 %r1, 60000;\n\tst.local.u32 [%r1], %r1;", illegalAddress},
		"a store to constants":           {"\tmov.u64 %rd1, constant;\n\tcvta.const.u64 %rd1, %rd1;\n\tst.u32 [%rd1], 1;", illegalAddress},
		"misaligned load":                {"\tld.global.u32 %r1, [%rd0+2];", misaligned},
		"misaligned vector":              {"\tld.global.v2.u32 {%r1, %r2}, [%rd0+4];", misaligned},
		"trap":                           {"\ttrap;", launchFailed},
		"trap of one thread":             {"\tmov.u32 %r1, %tid.x;\n\tsetp.eq.u32 %p1, %r1, 31;\n\t@%p1 trap;", launchFailed},
		"a barrier that does not exist":  {"\tbar.sync 16;", illegalInstr},
		"call of no function":            {"\tmov.u64 %rd1, 5;\n\tcall %rd1, (), P;\n\tP: .callprototype _ ();", illegalInstr},
		"a jump off the table":           {"\tbrx.idx 7, T;\n\tA:\n\tT: .branchtargets A;", illegalInstr},
		"assertion":                      {"\t{ .param .b64 m; .param .b64 f; .param .b32 l; .param .b64 n; .param .b64 s;\n\tcvta.global.u64 %rd1, text;\n\tst.param.b64 [m], %rd1;\n\tst.param.b64 [f], %rd1;\n\tst.param.b32 [l], 12;\n\tst.param.b64 [n], %rd1;\n\tst.param.b64 [s], 1;\n\tcall __assertfail, (m, f, l, n, s); }", assertion},
		"a loop without end":             {"\tL: bra L;", timeout},
		"a barrier that some never pass": {"\tmov.u32 %r1, %tid.x;\n\tsetp.eq.u32 %p1, %r1, 3;\n\t@%p1 bar.sync 1;\n\tbar.sync 0;", timeout},
	} {
		t.Run(name, func(t *testing.T) {
			t.Setenv("GPUSIM_INSTRUCTION_LIMIT", "10000000")
			d := l.newContext(t, 0)
			out := put(d, make([]uint32, 64))
			f := d.mustKernel(entry(c.body), "k")
			require.Equal(t, c.err, d.launch(f, shape{gx: 2, bx: 32}, out))
			require.Equal(t, c.err, check(d.cuCtxSynchronize()), "again")
			require.Equal(t, c.err, check(d.cuMemAlloc(new(uint64), 4)), "from another call")

			// A new context is as good as new.
			fresh := l.newContext(t, 0)
			out = put(fresh, make([]uint32, 64))
			require.NoError(t, fresh.launch(fresh.mustKernel(entry("\tst.global.u32 [%rd0], 5;"), "k"), shape{gx: 1, bx: 1}, out))
			require.Equal(t, []uint32{5}, get[uint32](fresh, out, 1))
		})
	}
}

func TestRecursionWithoutEndOverflowsTheStack(t *testing.T) {
	l := open(t, "h100-sxm").lib
	d := l.newContext(t, 0)
	f := d.mustKernel(header+".func f;\n.func f { call f; ret; }\n.entry k { call f; ret; }", "k")
	require.Equal(t, stackError, d.launch(f, shape{gx: 1, bx: 32}))
}

func TestLaunchesThatCannotBeAreRefused(t *testing.T) {
	d := open(t, "h100-sxm")
	f := d.mustKernel(header+".extern .shared .b8 dynamic[];\n.entry k() .maxntid 64,1,1 { ret; }\n.entry q(.param .u32 n) .reqntid 32,2,1 { ret; }", "k")
	q := d.mustKernel(header+".entry q(.param .u32 n) .reqntid 32,2,1 { ret; }", "q")
	require.NoError(t, d.launch(f, shape{gx: 1, bx: 64}))
	require.Equal(t, outOfResources, d.launch(f, shape{gx: 1, bx: 65}))
	require.Equal(t, invalidValue, d.launch(f, shape{gx: 0, bx: 1}))
	require.Equal(t, invalidValue, d.launch(f, shape{gx: 1, bx: 1025}))
	require.Equal(t, invalidValue, d.launch(f, shape{gx: 1, gy: 65536, bx: 1}))
	require.Equal(t, invalidValue, d.launch(f, shape{gx: 1, bx: 32, shared: 49153}))
	require.NoError(t, d.launch(f, shape{gx: 1, bx: 32, shared: 49152}))
	require.NoError(t, d.launch(q, shape{gx: 1, bx: 32, by: 2}, new(uint32(1))))
	require.Equal(t, invalidValue, d.launch(q, shape{gx: 1, bx: 64}, new(uint32(1))))
	require.Equal(t, invalidHandle, d.launch(12345, shape{gx: 1, bx: 1}))
}
