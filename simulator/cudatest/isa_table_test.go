package cudatest

import (
	"cmp"
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuready/gpuready/test/lab/golden"
)

// form is a line of testdata/isa.txt: an instruction with its modifiers, or a directive.
type form struct {
	section            string
	since, until       string // versions of the ISA; until: "", or the last that has it
	served             bool
	opcode, operands   string // both with {a,b} for a and b
	directive, trapped bool   // trapped: it ends the kernel with an error
}

// readISA returns the forms in the order of the file.
func readISA(t testing.TB) []form {
	t.Helper()
	data, err := os.ReadFile("testdata/isa.txt")
	require.NoError(t, err)
	var forms []form
	section := ""
	for line := range strings.Lines(string(data)) {
		line = strings.TrimRight(line, "\n")
		switch {
		case line == "" || line[0] == '#':
			continue
		case line[0] == '=':
			section = line[2:]
			continue
		}
		status, rest, _ := strings.Cut(line, " ")
		require.Contains(t, []string{"yes", "no"}, status, line)
		since, rest, _ := strings.Cut(rest, " ")
		f := form{section: section, served: status == "yes"}
		f.since, f.until, _ = strings.Cut(since, "-")
		if text, ok := strings.CutPrefix(rest, "@."); ok {
			f.directive, f.opcode = true, "."+text
		} else {
			if guard, after, ok := strings.Cut(rest, "@%p1 "); ok && guard == "" {
				rest = after
			}
			f.opcode, f.operands, _ = strings.Cut(rest, " ")
			f.trapped = f.opcode == "trap" || f.opcode == "brkpt"
		}
		forms = append(forms, f)
	}
	return forms
}

// choice is {a,b}, without spaces: with them it is a vector.
var choice = regexp.MustCompile(`\{[^{} ]*,[^{} ]*\}`)

// expand returns what a text with choices stands for.
func expand(text string) []string {
	at := choice.FindStringIndex(text)
	if at == nil {
		return []string{text}
	}
	var all []string
	for option := range strings.SplitSeq(text[at[0]+1:at[1]-1], ",") {
		all = append(all, expand(text[:at[0]]+option+text[at[1]:])...)
	}
	return all
}

// statement is an instruction of the form with operands that it may have.
func statement(instruction string) string {
	opcode, operands, _ := strings.Cut(instruction, " ")
	words := strings.Split(opcode, ".")
	address := "g"
	for _, w := range words {
		for space, variable := range map[string]string{"param": "in", "shared": "s", "const": "c", "local": "l"} {
			if w == space {
				address = variable
			}
		}
	}
	operands = strings.ReplaceAll(operands, "ADDRESS", address)
	if operands == "ATOM" {
		register := map[string]string{"16": "%h", "32": "%r", "64": "%l", "f32": "%f", "f64": "%d", "f16": "%h", "bf16": "%h", "f16x2": "%r", "bf16x2": "%r"}
		typ := words[len(words)-1]
		r, ok := register[typ]
		if !ok {
			r = register[typ[1:]]
		}
		if address == "g" && !strings.Contains(opcode, ".global") {
			address = "%l9" // generic
		}
		operands = fmt.Sprintf("[%s], %s2", address, r)
		if words[0] == "atom" {
			operands = r + "1, " + operands
		}
		if strings.Contains(opcode, ".cas.") {
			operands += ", " + r + "3"
		}
	}
	return opcode + " " + operands + ";"
}

// tableKernel holds one instruction, or a directive, in a kernel that has what it may refer to.
func tableKernel(version, directive, instruction string) string {
	setup, target := "", "sm_90"
	if version < "7" {
		target = "sm_60"
	}
	if strings.HasSuffix(instruction, ", P;") {
		setup = "mov.u64 %l1, e0; st.param.b32 [x], %r1;"
	}
	return ".version " + version + "\n.target " + target + `
.address_size 64
.global .align 16 .b8 g[256];
.const .align 16 .b8 c[256];
.shared .align 128 .b8 s[1024];
.func (.reg .b32 r) f(.reg .b32 x) { mov.b32 r, x; ret; }
.func (.param .b32 r) e0(.param .b32 x) { .reg .b32 %r; ld.param.b32 %r, [x]; st.param.b32 [r], %r; ret; }
` + directive + `
.visible .entry k(.param .align 8 .b8 in[64])
{
	.reg .pred %p<9>; .reg .b16 %h<9>; .reg .b32 %r<9>; .reg .b64 %l<10>; .reg .f32 %f<9>; .reg .f64 %d<9>;
	.local .align 16 .b8 l[64];
	P: .callprototype (.param .b32 _) _ (.param .b32 _);
	T: .branchtargets L, L;
	.param .b32 x; .param .b32 r;
	cvta.global.u64 %l9, g;
	` + setup + `
	` + instruction + `
L:
	ret;
}
`
}

// kernel is one with an instruction of the form.
func (f form) kernel(version, instruction string) string {
	if f.directive {
		return tableKernel(version, f.opcode, "")
	}
	return tableKernel(version, "", statement(instruction))
}

func TestEachFormOfTheISAIsServedOrRefused(t *testing.T) {
	d := open(t, "h100-sxm")
	for _, c := range readISA(t) {
		t.Run(c.opcode+" "+c.operands, func(t *testing.T) {
			d := d.in(t)
			for _, one := range expand(c.opcode + " " + c.operands) {
				ptx := c.kernel(cmp.Or(c.until, "8.0"), one)
				module, log, err := d.compile(ptx)
				if !c.served {
					require.Equal(t, notSupported, err, "%s: %s", one, log)
					require.Contains(t, log, "the simulator does not execute '", one)
					continue
				}
				require.NoError(t, err, "%s: %s", one, log)
				f, err := d.kernel(module, "k")
				require.NoError(t, err)
				if c.trapped {
					continue
				}
				require.NoError(t, d.launch(f, shape{gx: 1, bx: 32}, new([8]uint64)), one)
				require.Zero(t, d.cuModuleUnload(module))
			}
		})
	}
}

const (
	tablePage  = "../../docs/simulator.md"
	tableBegin = "<!-- PTX: made by go test ./simulator/cudatest -run TheTable -update -->\n"
	tableEnd   = "<!-- end of PTX -->\n"
)

// table renders the forms: a row for each instruction, its forms by the version that brought them.
func table(forms []form) string {
	var out strings.Builder
	section := ""
	for i := 0; i < len(forms); {
		if forms[i].section != section {
			section = forms[i].section
			fmt.Fprintf(&out, "\n**%s**\n\n| | served | not served |\n|---|---|---|\n", section)
		}
		name, _ := forms[i].words()
		n := i
		for n < len(forms) && forms[n].section == section {
			if next, _ := forms[n].words(); next != name {
				break
			}
			n++
		}
		fmt.Fprintf(&out, "| `%s` | %s | %s |\n", strings.NewReplacer("{", "", "}", "", ",", "`, `").Replace(name), cell(forms[i:n], true), cell(forms[i:n], false))
		i = n
	}
	return out.String()
}

// words splits a form into its instruction and modifiers; what differs of a special register
// or a directive is shown whole.
func (f form) words() (name, rest string) {
	switch {
	case f.directive:
		return "directives", f.opcode
	case f.section == "Special registers":
		_, registers, _ := strings.Cut(f.operands, ", ")
		return "special registers", strings.Trim(registers, "{}")
	}
	depth := 0
	for i, r := range f.opcode {
		switch {
		case r == '{' && i > 0 && depth == 0:
			return f.opcode[:i], f.opcode[i:]
		case r == '{':
			depth++
		case r == '}':
			depth--
		case r == '.' && depth == 0:
			return f.opcode[:i], f.opcode[i:]
		}
	}
	return f.opcode, ""
}

// cell lists the forms that are served, or those that are not.
func cell(forms []form, served bool) string {
	var parts []string
	since, seen := "", map[string]bool{}
	for _, f := range forms {
		_, rest := f.words()
		if f.served != served || seen[rest] {
			continue
		}
		seen[rest] = true
		version := f.since
		if f.until != "" {
			version += "–" + f.until
		}
		if version != since {
			parts = append(parts, version+":")
			since = version
		}
		parts = append(parts, "`"+cmp.Or(strings.ReplaceAll(rest, "|", "\\|"), "(plain)")+"`")
	}
	return strings.Join(parts, " ")
}

// The page says what the interpreter does: TestEachFormOfTheISAIsServedOrRefused holds the same file against it.
func TestTheTableIsInTheDocumentation(t *testing.T) {
	golden.RequireSection(t, tablePage, tableBegin, tableEnd, table(readISA(t))+"\n")
}
