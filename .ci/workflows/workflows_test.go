package workflows

import (
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/rhysd/actionlint"
	"github.com/stretchr/testify/require"
	"sigs.k8s.io/yaml"
)

const root = "../.."

// writes lists the only rights to write that a job may have, by file and job.
var writes = map[string][]string{
	"codeql.yaml analyse":      {"security-events"},
	"scorecard.yaml scorecard": {"security-events"},
	"release.yaml release":     {"packages", "id-token"},
	"release.yaml draft":       {"contents"},
	"release.yaml publish":     {"contents"},
}

// secret lists the jobs that may use the workflow's token.
var secret = []string{"release.yaml release", "release.yaml draft", "release.yaml verify", "release.yaml publish"}

// events may start a workflow. None of them runs a stranger's code with rights of this
// repository, as pull_request_target, workflow_run and issue_comment do.
var events = []string{"push", "pull_request", "merge_group", "schedule"}

// workflow is the part of a workflow that the rules are about.
type workflow struct {
	On          map[string]any `json:"true"` // YAML 1.1 reads the key on as a boolean
	Permissions any            `json:"permissions"`
	Jobs        map[string]job `json:"jobs"`
}

type job struct {
	Permissions map[string]string `json:"permissions"`
	Timeout     int               `json:"timeout-minutes"`
	Uses        string            `json:"uses"`
	Needs       any               `json:"needs"`
	If          any               `json:"if"`
	Strategy    struct {
		Matrix map[string]any `json:"matrix"`
	} `json:"strategy"`
	Env   map[string]string `json:"env"`
	Steps []step            `json:"steps"`
}

type step struct {
	Uses string            `json:"uses"`
	If   any               `json:"if"`
	Goes any               `json:"continue-on-error"`
	Run  string            `json:"run"`
	With map[string]any    `json:"with"`
	Env  map[string]string `json:"env"`
}

// read returns the texts of all workflows by the names of their files.
func read(t *testing.T) map[string]string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(root, ".github/workflows/*"))
	require.NoError(t, err)
	require.NotEmpty(t, files)
	all := map[string]string{}
	for _, path := range files {
		require.Equal(t, ".yaml", filepath.Ext(path))
		text, err := os.ReadFile(path)
		require.NoError(t, err)
		all[filepath.Base(path)] = string(text)
	}
	return all
}

func TestActionlint(t *testing.T) {
	shellcheck, err := exec.LookPath("shellcheck")
	require.NoError(t, err, "install the packages of .ci/packages.txt")
	linter, err := actionlint.NewLinter(io.Discard, &actionlint.LinterOptions{Shellcheck: shellcheck})
	require.NoError(t, err)
	for name, text := range read(t) {
		found, err := linter.Lint(".github/workflows/"+name, []byte(text), nil)
		require.NoError(t, err)
		for _, e := range found {
			t.Error(e)
		}
	}
}

func TestRules(t *testing.T) {
	for name, text := range read(t) {
		for _, problem := range problems(name, text) {
			t.Errorf("%s: %s", name, problem)
		}
	}
}

var (
	pinned = regexp.MustCompile(`^[a-zA-Z0-9-]+/[\w.-]+(/[\w./-]+)?@[0-9a-f]{40}$`)
	tagged = regexp.MustCompile(`uses: *(\S+) # v\d+\.\d+\.\d+$`)
)

// problems returns what a workflow does against the rules.
func problems(name, text string) []string {
	var all []string
	problem := func(parts ...string) { all = append(all, strings.Join(parts, " ")) }
	var w workflow
	if err := yaml.Unmarshal([]byte(text), &w); err != nil {
		return []string{err.Error()}
	}
	if len(w.On) == 0 {
		problem("on: a list of events with settings is required")
	}
	for event := range w.On {
		if !slices.Contains(events, event) {
			problem("on:", event, "is not one of the permitted events")
		}
	}
	if p, is := w.Permissions.(map[string]any); !is || len(p) > 0 {
		problem("permissions: {} is required; jobs get what they need")
	}
	var versioned []string
	for line := range strings.Lines(text) {
		if m := tagged.FindStringSubmatch(strings.TrimRight(line, "\n")); m != nil {
			versioned = append(versioned, m[1])
		}
	}
	for id, j := range w.Jobs {
		key := name + " " + id
		if j.Timeout == 0 || j.Timeout > 180 {
			problem(id+":", "timeout-minutes of at most 180 is required")
		}
		if j.Uses != "" {
			problem(id+":", "uses: a workflow of another repository")
		}
		for scope, access := range j.Permissions {
			if access != "read" && !slices.Contains(writes[key], scope) {
				problem(id+":", "permissions:", scope+":", access, "is not permitted")
			}
		}
		for _, s := range j.Steps {
			switch {
			case s.Uses == "":
			case !pinned.MatchString(s.Uses):
				problem(id+":", s.Uses, "is not pinned by the SHA of a commit")
			case !slices.Contains(versioned, s.Uses):
				problem(id+":", s.Uses, "has no comment with its version, as # v1.2.3")
			}
			// A run of any branch may write to a cache that a release would then contain.
			if j.Permissions["id-token"] == "write" && (strings.HasPrefix(s.Uses, "actions/cache") ||
				strings.HasPrefix(s.Uses, "actions/setup-go@") && s.With["cache"] != false) {
				problem(id+":", s.Uses, "takes what others have cached into what is signed; cache: false is required")
			}
			if strings.HasPrefix(s.Uses, "actions/checkout@") && s.With["persist-credentials"] != false {
				problem(id+":", "checkout keeps the token: persist-credentials: false is required")
			}
			// An expression in a script is replaced before a shell reads it, so that the name of a
			// branch can be a command. A variable cannot.
			if strings.Contains(s.Run, "${{") {
				problem(id+":", "run: an expression; pass it by env")
			}
			for variable, value := range s.Env {
				if isStrangers(value) {
					problem(id+":", "env:", variable+":", "takes what a stranger has chosen")
				}
			}
			for input, value := range s.With {
				if text, is := value.(string); is && (isStrangers(text) || input == "script" && strings.Contains(text, "${{")) {
					problem(id+":", "with:", input+":", "takes what a stranger has chosen")
				}
			}
		}
		for variable, value := range j.Env {
			if isStrangers(value) {
				problem(id+":", "env:", variable+":", "takes what a stranger has chosen")
			}
		}
		if token.MatchString(jobText(text, id)) && !slices.Contains(secret, key) {
			problem(id+":", "uses a secret or the workflow's token")
		}
	}
	if _, stranger := w.On["pull_request"]; stranger && token.MatchString(text) {
		problem("a workflow for pull requests uses a secret or the workflow's token")
	}
	return all
}

// isStrangers reports whether a value holds an expression whose text the author of a pull request or
// an issue has chosen.
func isStrangers(value string) bool {
	return strings.Contains(value, "github.event.") || strings.Contains(value, "github.head_ref") || strings.Contains(value, "toJSON(github")
}

var token = regexp.MustCompile(`secrets\s*[.\[]|secrets: *inherit|github\.token|GITHUB_TOKEN`)

var bundle = regexp.MustCompile(`[\w.]+\.sigstore\.json`)

// jobText returns the lines of a job.
func jobText(text, id string) string {
	_, rest, _ := strings.Cut(text, "\n  "+id+":\n")
	var b strings.Builder
	for line := range strings.Lines(rest) {
		if len(line) > 2 && line[:2] == "  " && line[2] != ' ' && line[2] != '#' {
			break
		}
		b.WriteString(line)
	}
	return b.String()
}

// A draft becomes a release only if it was verified: no job or step goes on after a failure.
func TestNothingIsPublishedWithoutVerification(t *testing.T) {
	var w workflow
	require.NoError(t, yaml.Unmarshal([]byte(read(t)["release.yaml"]), &w))
	require.Equal(t, "verify", w.Jobs["publish"].Needs)
	require.Equal(t, "draft", w.Jobs["verify"].Needs)
	require.Equal(t, "release", w.Jobs["draft"].Needs)
	require.Equal(t, "build", w.Jobs["release"].Needs)
	require.Equal(t, map[string]string{"contents": "read"}, w.Jobs["build"].Permissions, "what is built cannot push or sign")
	for id, j := range w.Jobs {
		require.Nil(t, j.If, id)
		asRoot := false
		for _, s := range j.Steps {
			require.Nil(t, s.If, id)
			require.Nil(t, s.Goes, id)
			require.False(t, asRoot && strings.Contains(s.Run, "go run"), "%s: the caches of Go belong to root after sudo make", id)
			asRoot = asRoot || strings.Contains(s.Run, "sudo")
		}
	}
	steps := w.Jobs["draft"].Steps
	require.Contains(t, steps[len(steps)-1].Run, " release.json files/* ", "what is signed is there with its signature")
	require.Equal(t, []string{"release.json.signature.sigstore.json", "SHA256SUMS.signature.sigstore.json", "files.provenance.sigstore.json"},
		bundle.FindAllString(steps[len(steps)-1].Run, -1), "those that a release has in the registry, and no others")
	steps = w.Jobs["verify"].Steps
	require.Contains(t, steps[len(steps)-2].Run, "make verify-release-signed")
	require.Contains(t, steps[len(steps)-2].Run, " release.json files/* signatures/*", "before anything of the release runs")
	require.Contains(t, steps[len(steps)-1].Run, "make verify-release ")
	steps = w.Jobs["publish"].Steps
	require.Contains(t, steps[0].Run, "sha256sum --check --strict ../verified")
	require.Contains(t, steps[1].Run, "--draft=false")
}

func TestRulesAreHeld(t *testing.T) {
	const good = `on:
  push:
permissions: {}
jobs:
  a:
    runs-on: ubuntu-24.04
    timeout-minutes: 5
    permissions:
      contents: read
    steps:
      - uses: actions/checkout@de0fac2e4500dabe0009e67214ff5f5447ce83dd # v6.0.2
        with:
          persist-credentials: false
      - env:
          X: ${{ matrix.x }}
        run: make "$X"
`
	require.Empty(t, problems("check.yaml", good))
	for name, test := range map[string]struct{ old, new, want string }{
		"tag":             {"de0fac2e4500dabe0009e67214ff5f5447ce83dd", "v6", "not pinned"},
		"short SHA":       {"de0fac2e4500dabe0009e67214ff5f5447ce83dd", "de0fac2", "not pinned"},
		"no version":      {" # v6.0.2", "", "no comment with its version"},
		"credentials":     {"persist-credentials: false", "fetch-depth: 0", "persist-credentials"},
		"all rights":      {"permissions: {}", "permissions: write-all", "permissions: {}"},
		"default rights":  {"permissions: {}\n", "", "permissions: {}"},
		"write":           {"contents: read", "contents: write", "contents: write"},
		"identity":        {"contents: read", "id-token: write", "id-token: write"},
		"event":           {"  push:", "  pull_request_target:", "pull_request_target"},
		"no deadline":     {"    timeout-minutes: 5\n", "", "timeout-minutes"},
		"injection":       {`make "$X"`, "make ${{ github.event.pull_request.title }}", "pass it by env"},
		"stranger's text": {"matrix.x", "github.event.issue.body", "a stranger has chosen"},
		"script":          {"persist-credentials: false", "persist-credentials: false\n          script: ${{ matrix.x }}", "a stranger has chosen"},
		"input":           {"persist-credentials: false", "persist-credentials: false\n          ref: ${{ github.event.pull_request.head.ref }}", "a stranger has chosen"},
		"env of a job":    {"    timeout-minutes: 5\n", "    timeout-minutes: 5\n    env:\n      X: ${{ github.head_ref }}\n", "a stranger has chosen"},
		"cache":           {"contents: read\n    steps:", "id-token: write\n    steps:\n      - uses: actions/cache@0057852bfaa89a56745cba8c7296529d2fc39830 # v4.3.0", "what others have cached"},
		"secret":          {"matrix.x", "secrets.KEY", "uses a secret"},
		"token":           {"matrix.x", "github.token", "uses a secret"},
	} {
		t.Run(name, func(t *testing.T) {
			text := strings.Replace(good, test.old, test.new, 1)
			require.NotEqual(t, good, text)
			require.Contains(t, strings.Join(problems("check.yaml", text), "\n"), test.want)
		})
	}
}

var (
	target = regexp.MustCompile(`(?m)^\.PHONY: (.*)$`)
	called = regexp.MustCompile(`(?m)\bmake ((?:[a-z][a-z0-9-]* ?)+)`)
	lane   = regexp.MustCompile(`(?m)^run_all ([a-z0-9 -]+)`)
)

// targets returns the targets of the Makefile and of the files that it includes.
func targets(t *testing.T) []string {
	t.Helper()
	out, err := exec.Command("git", "-C", root, "ls-files", "Makefile", "*.mk").Output()
	require.NoError(t, err)
	var all []string
	for file := range strings.FieldsSeq(string(out)) {
		text, err := os.ReadFile(filepath.Join(root, file))
		require.NoError(t, err)
		for _, m := range target.FindAllStringSubmatch(string(text), -1) {
			all = append(all, strings.Fields(m[1])...)
		}
	}
	require.Contains(t, all, "check")
	return all
}

// made returns the targets that the workflows for an event make, by themselves or by a matrix; "": all
// workflows.
func made(t *testing.T, event string) []string {
	t.Helper()
	var all []string
	for name, text := range read(t) {
		var w workflow
		require.NoError(t, yaml.Unmarshal([]byte(text), &w), name)
		if _, starts := w.On[event]; !starts && event != "" {
			continue
		}
		for _, j := range w.Jobs {
			for _, key := range []string{"target", "targets"} {
				values, _ := j.Strategy.Matrix[key].([]any)
				for _, v := range values {
					for word := range strings.FieldsSeq(v.(string)) {
						if !strings.Contains(word, "=") { // a variable of make
							all = append(all, word)
						}
					}
				}
			}
			for _, s := range j.Steps {
				for _, m := range called.FindAllStringSubmatch(s.Run, -1) {
					all = append(all, strings.Fields(m[1])...)
				}
			}
		}
	}
	return all
}

func TestTargetsExist(t *testing.T) {
	all, have := made(t, ""), targets(t)
	for _, name := range all {
		require.Contains(t, have, name)
	}
	require.Contains(t, all, "check")
	require.Contains(t, all, "test")
}

func TestPullRequestsRunTheSuitesOfCI(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(root, ".ci/run"))
	require.NoError(t, err)
	all := made(t, "pull_request")
	lanes := lane.FindAllStringSubmatch(string(text), -1)
	require.NotEmpty(t, lanes)
	for _, m := range lanes {
		for name := range strings.FieldsSeq(m[1]) {
			require.Contains(t, all, name, ".ci/run runs it; .github/workflows/e2e.yaml does not")
		}
	}
}

func TestEachKubernetesIsTested(t *testing.T) {
	folders, err := filepath.Glob(filepath.Join(root, "test/lab/binaries/kubernetes-*"))
	require.NoError(t, err)
	require.NotEmpty(t, folders)
	weekly := read(t)["weekly.yaml"]
	for _, folder := range folders {
		_, version, _ := strings.Cut(filepath.Base(folder), "-")
		require.Contains(t, weekly, "KUBERNETES_VERSIONS="+version+"\n")
	}
}

// A module without updates keeps its vulnerabilities. The programs of other projects that tests run
// are raised by hand.
func TestDependabotKnowsTheModules(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(root, ".github/dependabot.yml"))
	require.NoError(t, err)
	var config struct {
		Updates []struct {
			Ecosystem   string   `json:"package-ecosystem"`
			Directory   string   `json:"directory"`
			Directories []string `json:"directories"`
		} `json:"updates"`
	}
	require.NoError(t, yaml.Unmarshal(text, &config))
	var known []string
	for _, u := range config.Updates {
		if u.Ecosystem == "gomod" {
			known = append(known, u.Directories...)
		}
	}
	out, err := exec.Command("git", "-C", root, "ls-files", "go.mod", "*/go.mod").Output()
	require.NoError(t, err)
	for file := range strings.FieldsSeq(string(out)) {
		dir := filepath.Join("/", filepath.Dir(file))
		require.True(t, strings.HasPrefix(dir, "/test/lab/binaries/") || slices.ContainsFunc(known, func(pattern string) bool {
			matches, err := filepath.Match(pattern, dir)
			return err == nil && matches
		}), "%s: not in .github/dependabot.yml", dir)
	}
}

// The forms of issues ask for what support needs.
func TestFormOfABug(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(root, ".github/ISSUE_TEMPLATE/bug.yml"))
	require.NoError(t, err)
	var form struct {
		Name, Description string
		Labels            []string
		Body              []struct {
			Type, ID    string
			Attributes  map[string]any
			Validations struct{ Required bool }
		}
	}
	require.NoError(t, yaml.UnmarshalStrict(text, &form))
	var required []string
	for _, field := range form.Body {
		if field.Validations.Required {
			required = append(required, field.ID)
		}
	}
	require.Subset(t, required, []string{"what", "must-gather", "version", "kubernetes", "runtime", "node", "gpu"})
	require.Contains(t, string(text), "kubectl gpu must-gather")
}
