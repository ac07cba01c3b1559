package rootfs

import (
	"debug/elf"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"
)

// shells are programs that run arbitrary commands: an image without them gives an
// intruder nothing to work with.
var shells = []string{
	"sh", "ash", "bash", "rbash", "dash", "ksh", "mksh", "zsh", "csh", "tcsh", "fish", "busybox", "toybox",
	"perl", "python", "python3", "lua", "awk", "gawk", "mawk",
}

var machines = map[string]elf.Machine{"amd64": elf.EM_X86_64, "arm64": elf.EM_AARCH64}

// Triplet returns the name of an architecture's folder below /usr/lib on Debian and
// Ubuntu, or "" if this project has no images for it.
func Triplet(arch string) string {
	return map[string]string{"amd64": "x86_64-linux-gnu", "arm64": "aarch64-linux-gnu"}[arch]
}

// Check returns the problems of an image: files that would run commands or grant
// privileges, and files of ours, by path, that could not be loaded.
func Check(t Tree, arch string, ours []string) []error {
	var problems []error
	add := func(format string, args ...any) { problems = append(problems, fmt.Errorf(format, args...)) }
	for _, name := range t.Paths() {
		f := t[name]
		if f.Mode.Type() == fs.ModeSymlink {
			if slices.Contains(shells, path.Base(name)) {
				add("%s is a shell's name; use a base without one", name)
			}
			continue
		}
		switch {
		case f.Mode.IsRegular() && slices.Contains(shells, path.Base(name)) && f.Mode.Perm()&0o111 != 0:
			add("%s is a shell; use a base without one", name)
		case f.Mode&(fs.ModeSetuid|fs.ModeSetgid) != 0 && !f.Mode.IsDir():
			add("%s is %v and would give rights; use a base without it", name, f.Mode)
		case f.Mode&(fs.ModeDevice|fs.ModeNamedPipe|fs.ModeSocket) != 0:
			add("%s is %v; images hold files, links and directories", name, f.Mode)
		case f.Mode.Perm()&0o002 != 0 && (!f.Mode.IsDir() || f.Mode&fs.ModeSticky == 0):
			add("%s is %v, for anyone to write; take that right away", name, f.Mode)
		}
	}
	for _, name := range ours {
		if o := t[name].Object; o != nil {
			problems = append(problems, t.checkObject(name, o, arch)...)
		}
	}
	return problems
}

// checkObject returns why a program or library could not be loaded.
func (t Tree) checkObject(name string, o *Object, arch string) []error {
	var problems []error
	add := func(format string, args ...any) { problems = append(problems, fmt.Errorf(format, args...)) }
	if o.Machine != machines[arch] {
		add("%s is for %v, not for %s; build it with ARCH=%s", name, o.Machine, arch, arch)
		return problems
	}
	if o.Setting("-race") == "true" {
		add("%s was built with the race detector; build it without RACE=1", name)
	}
	if o.Interp != "" {
		if at, ok := t.Resolve(o.Interp); !ok || !t[at].Mode.IsRegular() {
			add("%s wants the loader %s, which the base has not; use a base with glibc", name, o.Interp)
		}
	}
	for _, library := range o.Needed {
		found, ok := t.findLibrary(library, arch)
		if !ok {
			add("%s wants %s, which the base has not; add it to the libraries that the base keeps (build/base), or do not link it", name, library)
			continue
		}
		for _, v := range o.Wants {
			if v.Library != library || found.Object == nil || slices.Contains(found.Object.Defines, v.Name) {
				continue
			}
			symbol := ""
			if v.Symbol != "" {
				symbol = " (" + v.Symbol + ")"
			}
			add("%s wants %s of %s%s, the base's goes up to %s; build where the base is from, or use a newer base",
				name, v.Name, library, symbol, newest(found.Object.Defines, v.Name))
		}
	}
	return problems
}

// findLibrary finds a library in the folders of glibc's loader.
func (t Tree) findLibrary(name, arch string) (File, bool) {
	triplet := Triplet(arch)
	for _, dir := range []string{"/lib/" + triplet, "/usr/lib/" + triplet, "/lib64", "/usr/lib64", "/lib", "/usr/lib"} {
		if at, ok := t.Resolve(path.Join(dir, name)); ok && t[at].Mode.IsRegular() {
			return t[at], true
		}
	}
	return File{}, false
}

// newest returns the highest version of the same series (GLIBC_…) as like.
func newest(versions []string, like string) string {
	series, _, _ := strings.Cut(like, "_")
	best := "none"
	for _, v := range versions {
		if strings.HasPrefix(v, series+"_") && strings.Trim(v[len(series)+1:], "0123456789.") == "" && (best == "none" || compare(v, best) > 0) {
			best = v
		}
	}
	return best
}

// compare compares versions by the numbers in them.
func compare(a, b string) int {
	return slices.Compare(numbers(a), numbers(b))
}

func numbers(version string) []int {
	var all []int
	for part := range strings.FieldsFuncSeq(version, func(r rune) bool { return r < '0' || r > '9' }) {
		n := 0
		for _, digit := range part {
			n = n*10 + int(digit-'0')
		}
		all = append(all, n)
	}
	return all
}
