package cudatest

import (
	"cmp"
	"math/rand/v2"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// fragments are bodies of kernels for what compilers seldom write.
var fragments = []string{
	"L: bra L;", "bar.sync 0;\n\tbar.red.popc.u32 %r1, 0, %p1;", "brx.idx %r1, T;\nA: T: .branchtargets A, A;",
	"shfl.sync.idx.b32 %r1|%p1, %r2, %r3, 31, -1;", "match.any.sync.b32 %r1, %r2, -1;",
	"vote.sync.ballot.b32 %r1, %p1, -1;", "{ .param .b64 a; .param .b64 b; .param .b32 r; call (r), vprintf, (a, b); }",
	"atom.global.cas.b64 %rd1, [%rd0], %rd2, %rd3;", "{ .reg .b32 %r1; .local .b8 x[16]; .shared .b8 y[8]; mov.u32 %r1, y; }",
}

// Whatever text it is given, the driver answers with a result: it neither
// crashes the process nor runs for ever. `go test -fuzz` runs this in worker
// processes, and reports one that dies.
func FuzzModule(f *testing.F) {
	for _, ptx := range compilers(f) {
		for _, k := range strings.SplitAfter(ptx, "\n}\n") {
			f.Add(k, uint64(0))
		}
		f.Add(ptx, uint64(1))
	}
	for _, c := range isa {
		f.Add(isaKernel(c.op, c.kinds), uint64(2))
	}
	for _, body := range fragments {
		f.Add(entry(body), uint64(3))
	}
	for _, c := range readISA(f) {
		f.Add(c.kernel(cmp.Or(c.until, "8.0"), expand(c.opcode + " " + c.operands)[0]), uint64(4))
	}
	f.Add(caller+callee, uint64(5))
	l := open(f, "h100-sxm", "--gpus", "1").lib
	f.Setenv("GPUSIM_INSTRUCTION_LIMIT", "200000")
	f.Fuzz(func(t *testing.T, ptx string, seed uint64) {
		if seed != 0 {
			ptx = mutate(rand.New(rand.NewPCG(seed, 0)), ptx)
		}
		feed(l.newContext(t, 0), ptx)
	})
}

// feed loads any input and launches each kernel; it reports whether one ran.
func feed(d *device, ptx string) (ran bool) {
	module, log, err := d.compile(ptx)
	if err != nil {
		require.LessOrEqual(d.t, len(log), 700)
		return false
	}
	out := put(d, make([]byte, 4096))
	// As many parameters as any of them may have; each points to memory.
	args := make1(256, func(int) any { return out })
	for _, name := range entries(ptx) {
		k, err := d.kernel(module, name)
		if err != nil {
			continue
		}
		ran = true
		if d.launch(k, shape{gx: 2, bx: 40, shared: 128}, args...) != nil {
			break // the context is spent
		}
	}
	return ran
}

// Kernels that almost make sense get further than a fuzzer's blind bytes: tokens
// of good ones are moved about. GPUSIM_MUTANTS asks for more than a few of them.
func TestKernelsThatAlmostMakeSenseDoNoHarm(t *testing.T) {
	count := 2000
	if v := os.Getenv("GPUSIM_MUTANTS"); v != "" {
		var err error
		count, err = strconv.Atoi(v)
		require.NoError(t, err)
	}
	var good []string
	for _, ptx := range compilers(t) {
		good = append(good, ptx)
	}
	for _, c := range isa {
		good = append(good, isaKernel(c.op, c.kinds))
	}
	for _, body := range fragments {
		good = append(good, entry(body))
	}
	slices.Sort(good) // compilers is a map: the same mutants each time
	t.Setenv("GPUSIM_INSTRUCTION_LIMIT", "200000")
	l := open(t, "h100-sxm", "--gpus", "1").lib
	ran := 0
	for i := range count {
		r := rand.New(rand.NewPCG(uint64(i), 5))
		t.Run("", func(t *testing.T) {
			if feed(l.newContext(t, 0), mutate(r, good[r.IntN(len(good))])) {
				ran++
			}
		})
	}
	require.Greater(t, ran, count/20, "mutants that could be run")
	t.Logf("%d of %d ran", ran, count)
}

// entries are the names after .entry, which may be nonsense.
func entries(ptx string) []string {
	var names []string
	for _, part := range strings.Split(ptx, ".entry")[1:] {
		name := strings.FieldsFunc(part, func(r rune) bool { return strings.ContainsRune(" \t\n\r({;", r) })
		if len(name) > 0 && !strings.Contains(name[0], "\x00") {
			names = append(names, name[0])
		}
	}
	return names
}

var (
	word   = regexp.MustCompile(`%[a-z]+\d+|\b\d+\b|\.[a-z]+\d+\b|\b[a-z]+[a-z.]*\b`)
	nasty  = []string{"0", "1", "31", "32", "-1", "255", "4294967295", "18446744073709551615", "65536", "1048576"}
	common = []string{".u8", ".s16", ".b32", ".u32", ".f32", ".b64", ".s64", ".f64", ".pred", ".v2", ".v4"}
)

// mutate changes a few lines or words into others of their kind.
func mutate(r *rand.Rand, ptx string) string {
	lines := strings.Split(ptx, "\n")
	for range 1 + r.IntN(4) {
		i, j := r.IntN(len(lines)), r.IntN(len(lines))
		switch r.IntN(8) {
		case 0:
			lines[i], lines[j] = lines[j], lines[i]
		case 1:
			lines = slices.Insert(lines, i, lines[j])
		case 2:
			if len(lines) > 1 {
				lines = slices.Delete(lines, i, i+1)
			}
		default:
			at := word.FindAllStringIndex(lines[i], -1)
			if at == nil {
				continue
			}
			w := at[r.IntN(len(at))]
			other := another(r, lines, lines[i][w[0]:w[1]])
			lines[i] = lines[i][:w[0]] + other + lines[i][w[1]:]
		}
	}
	return strings.Join(lines, "\n")
}

// another is a word of the same kind as w, from elsewhere.
func another(r *rand.Rand, lines []string, w string) string {
	switch {
	case w[0] == '.':
		return common[r.IntN(len(common))]
	case w[0] >= '0' && w[0] <= '9':
		return nasty[r.IntN(len(nasty))]
	}
	for range 50 {
		words := word.FindAllString(lines[r.IntN(len(lines))], -1)
		if len(words) == 0 {
			continue
		}
		other := words[r.IntN(len(words))]
		// A register for one of the same prefix, an opcode for an opcode.
		if strings.TrimRight(other, "0123456789") == strings.TrimRight(w, "0123456789") || (w[0] != '%' && other[0] >= 'a' && other[0] <= 'z') {
			return other
		}
	}
	return w
}
