package program

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strings"

	"github.com/gpuready/gpuready/internal/version"
)

const (
	completeCommand = "__complete" // prints completions; the shells' scripts call it
	manCommand      = "__man"      // prints the manual page, for make man
)

// HasBuiltin reports whether the arguments name a command that every program has: help, version or
// completion.
func HasBuiltin(args []string) bool {
	return len(args) > 0 && slices.Contains([]string{"--help", "-h", "help", "--version", "version", "completion", completeCommand, manCommand}, args[0])
}

func (p Program) runBuiltin(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	var err error
	switch args[0] {
	case "--version", "version":
		err = p.printVersion(args[1:], stdout)
	case "completion":
		err = printScript(p.Name, args[1:], stdout)
	case completeCommand:
		_, err = io.WriteString(stdout, p.complete(ctx, args[1:]))
	case manCommand:
		_, err = io.WriteString(stdout, p.manual(ctx))
	case "help":
		if len(args) > 1 { // help COMMAND is COMMAND --help
			return p.dispatch(ctx, append(slices.Clone(args[1:]), "--help"), stdout, stderr)
		}
		fallthrough
	default:
		_, err = io.WriteString(stdout, p.Help)
	}
	return err
}

func (p Program) printVersion(args []string, stdout io.Writer) error {
	f := NewFlags(cmp.Or(p.Call, p.Name)+" version", "Print the version, the commit and its date, and Go's version.\n", "", stdout)
	output := f.StringP("output", "o", "text", "text or json")
	f.ParseErrorsAllowlist.UnknownFlags = len(p.Globals) > 0 // which it does not need
	if err := f.Read(args); err != nil {
		return err
	}
	if err := f.RefuseArgs(); err != nil {
		return err
	}
	switch *output {
	case "text":
		_, err := fmt.Fprintln(stdout, version.Get(p.Name).Line())
		return err
	case "json":
		e := json.NewEncoder(stdout)
		e.SetIndent("", "  ")
		return e.Encode(version.Get(p.Name))
	}
	return UsageErrorf("--output is %q; say text or json", *output)
}

// flagOf is a flag of a command, as its help has it.
type flagOf struct {
	name, shorthand, usage string
	valued                 bool
}

// flagLine matches the first line of a flag in a help: "  -o, --output string   text or json".
var flagLine = regexp.MustCompile(`^ +(?:-(\w), )?--([a-z0-9][\w-]*)( \S+)?(?:   *(.*))?$`)

// flagsOf returns the flags of a command, from its help.
func (c Command) flagsOf(ctx context.Context) (flags []flagOf) {
	var help bytes.Buffer
	_ = c.Run(ctx, []string{"--help"}, &help, io.Discard)
	_, list, _ := strings.Cut(help.String(), "\nFlags")
	for line := range strings.Lines(list) {
		line = strings.TrimRight(line, "\n")
		if part := flagLine.FindStringSubmatch(line); part != nil {
			flags = append(flags, flagOf{part[2], part[1], part[4], part[3] != ""})
		} else if n := len(flags); n > 0 && strings.HasPrefix(line, "        ") {
			flags[n-1].usage = strings.TrimSpace(flags[n-1].usage + " " + strings.TrimSpace(line))
		}
	}
	return append(flags, flagOf{name: "help", shorthand: "h", usage: "print the help"})
}

// values matches what a usage says of a flag that has one of a few values: "text or json".
var values = regexp.MustCompile(`(?:^|: )((?:[a-z0-9-]+, )*[a-z0-9-]+ or [a-z0-9-]+)(?:$| [[(])`)

// Directives of cobra's protocol, which kubectl knows, too.
const (
	directiveDefault = 0 // the shell completes files if there is no completion
	directiveNoFiles = 4
)

// complete returns the completions of the last of some words, one in a line, each followed by a tab and
// a description, and then a line with a directive. This is the protocol of programs that use cobra.
func (p Program) complete(ctx context.Context, words []string) string {
	if len(words) == 0 {
		words = []string{""}
	}
	before, word := splitEqual(words)
	globals := p.countGlobals(before)
	before = p.moveGlobals(before)
	directive := directiveNoFiles
	var all [][2]string
	switch command := p.find(before); {
	case globals > len(before):
		directive = directiveDefault // the value of a global flag
	case len(before) == globals:
		for _, c := range p.Commands {
			if !c.Hidden {
				all = append(all, [2]string{c.Name, p.summary(c.Name)})
			}
		}
		all = append(all, [2]string{"completion", "print a script that completes this program's command lines"}, [2]string{"help", ""}, [2]string{"version", ""}, [2]string{"--help", ""}, [2]string{"--version", ""})
	case before[0] == "completion":
		all = [][2]string{{"bash"}, {"zsh"}, {"fish"}}
	case command == nil:
	default:
		flags := command.flagsOf(ctx)
		last := before[len(before)-1]
		i := slices.IndexFunc(flags, func(f flagOf) bool {
			return f.valued && (last == "--"+f.name || f.shorthand != "" && last == "-"+f.shorthand)
		})
		switch {
		case i >= 0:
			if match := values.FindStringSubmatch(flags[i].usage); match != nil {
				for value := range strings.SplitSeq(strings.ReplaceAll(match[1], " or ", ", "), ", ") {
					all = append(all, [2]string{value})
				}
			} else {
				directive = directiveDefault
			}
		case strings.HasPrefix(word, "-"):
			for _, f := range flags {
				all = append(all, [2]string{"--" + f.name, f.usage})
			}
		case command.Complete != nil:
			for _, value := range command.Complete(ctx, before[1:]) {
				all = append(all, [2]string{value})
			}
		default:
			directive = directiveDefault
		}
	}
	var out strings.Builder
	for _, c := range all {
		if strings.HasPrefix(c[0], word) && (word != "" || !strings.HasPrefix(c[0], "-")) {
			out.WriteString(strings.TrimSuffix(c[0]+"\t"+strings.ReplaceAll(c[1], "\n", " "), "\t") + "\n")
		}
	}
	fmt.Fprintf(&out, ":%d\n", directive)
	return out.String()
}

// splitEqual returns the words before the last one, and the last one. Bash makes three words of
// --flag=value; those before are one again.
func splitEqual(words []string) (before []string, word string) {
	n := len(words)
	before, word = words[:n-1], words[n-1]
	switch {
	case word == "=":
		word = ""
	case n >= 2 && words[n-2] == "=":
		before = words[:n-2]
	}
	var joined []string
	for i, w := range before {
		if n := len(joined); n > 0 && (w == "=" || before[i-1] == "=") {
			joined[n-1] += w
		} else {
			joined = append(joined, w)
		}
	}
	return joined, word
}

// find returns the command that words name, or nil.
func (p Program) find(words []string) *Command {
	name := p.DefaultCommand
	if len(words) > 0 && !strings.HasPrefix(words[0], "-") {
		name = words[0]
	}
	if i := slices.IndexFunc(p.Commands, func(c Command) bool { return c.Name == name }); i >= 0 {
		return &p.Commands[i]
	}
	return nil
}

// summary returns what the help says of a command in its line, or "".
func (p Program) summary(command string) string {
	for line := range strings.Lines(p.Help) {
		rest, found := strings.CutPrefix(strings.TrimSpace(line), command+" ")
		if !found {
			_, rest, found = strings.Cut(strings.TrimSpace(line), cmp.Or(p.Call, p.Name)+" "+command+" ")
		}
		if at := strings.Index(rest, "  "); found && at >= 0 {
			return strings.TrimSpace(rest[at:])
		} else if found && strings.HasPrefix(rest, " ") {
			return strings.TrimSpace(rest)
		}
	}
	return ""
}

// printScript prints the script with which a shell completes the program's command lines.
func printScript(name string, args []string, stdout io.Writer) error {
	const usage = `Print a script that completes this program's command lines.

Examples:
  source <(%[1]s completion bash)
  %[1]s completion bash >/etc/bash_completion.d/%[1]s
  %[1]s completion zsh >"${fpath[1]}/_%[1]s"
  %[1]s completion fish >~/.config/fish/completions/%[1]s.fish
`
	f := NewFlags(name+" completion", fmt.Sprintf(usage, name), "", stdout)
	if err := f.Read(args); err != nil {
		return err
	}
	script, known := scripts[f.Arg(0)]
	if !known || f.NArg() != 1 {
		return UsageErrorf("say for which shell: completion bash, zsh or fish")
	}
	_, err := io.WriteString(stdout, strings.NewReplacer("PROGRAM", name, "FUNCTION", "_"+strings.ReplaceAll(name, "-", "_")).Replace(script))
	return err
}

var scripts = map[string]string{
	"bash": `# bash completion of PROGRAM
FUNCTION() {
	local line out directive
	COMPREPLY=()
	out=$("${COMP_WORDS[0]}" __complete "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null) || return
	directive=${out##*:}
	while IFS= read -r line; do
		[[ $line == :* ]] || COMPREPLY+=("${line%%$'\t'*}")
	done <<<"$out"
	if [[ $directive != 4 && ${#COMPREPLY[@]} == 0 ]]; then
		compopt -o default 2>/dev/null
	fi
}
complete -F FUNCTION PROGRAM
`,
	"zsh": `#compdef PROGRAM
# zsh completion of PROGRAM
FUNCTION() {
	local line out
	local -a found
	out=$("${words[1]}" __complete "${(@)words[2,CURRENT]}" 2>/dev/null) || return
	for line in "${(@f)out}"; do
		[[ $line == :* || -z $line ]] && continue
		line=${line//:/\\:}
		found+=("${line/$'\t'/:}")
	done
	if (( ${#found} )); then
		_describe PROGRAM found
	elif [[ ${out##*:} != 4 ]]; then
		_files
	fi
}
if [[ ${funcstack[1]} == FUNCTION ]]; then
	FUNCTION "$@"
else
	compdef FUNCTION PROGRAM
fi
`,
	"fish": `# fish completion of PROGRAM
function FUNCTION
	set -l out (PROGRAM __complete (commandline -opc)[2..-1] (commandline -ct) 2>/dev/null)
	string match -v -- ':*' $out
	if test "$out[-1]" != ':4'; and test (count $out) -eq 1
		__fish_complete_path (commandline -ct)
	end
end
complete -c PROGRAM -f -a '(FUNCTION)'
`,
}

// manual returns the manual page, made of the help of the program and of its commands.
func (p Program) manual(ctx context.Context) string {
	info := version.Get(p.Name)
	var page strings.Builder
	roff := strings.NewReplacer(`\`, `\e`, "-", `\-`, "\n.", "\n\\&.", "\n'", "\n\\&'")
	fmt.Fprintf(&page, ".TH %s 1 \"%s\" \"%s\" \"gpuready\"\n", strings.ToUpper(p.Name), info.Date, info.Version)
	section := func(title, text string) {
		fmt.Fprintf(&page, ".SH %s\n.nf\n%s\n.fi\n", roff.Replace(strings.ToUpper(title)), strings.TrimPrefix(roff.Replace("\n"+strings.TrimSpace(text)), "\n"))
	}
	first, _, _ := strings.Cut(p.Help, "\n")
	fmt.Fprintf(&page, ".SH NAME\n%s \\- %s\n", roff.Replace(p.Name), roff.Replace(strings.TrimSuffix(strings.TrimSpace(strings.TrimPrefix(first, cmp.Or(p.Call, p.Name))), ".")))
	section("Description", p.Help)
	for _, c := range p.Commands {
		if c.Hidden {
			continue
		}
		var help bytes.Buffer
		_ = c.Run(ctx, []string{"--help"}, &help, io.Discard)
		if help.String() != p.Help { // all commands of some programs share one
			section(cmp.Or(p.Call, p.Name)+" "+c.Name, help.String())
		}
	}
	return page.String()
}
