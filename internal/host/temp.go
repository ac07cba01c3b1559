package host

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"io/fs"
	"path"
	"strings"
)

const tempRandom = 16 // hexadecimal digits

// temp returns a name beside base for an unfinished file. It begins with a dot and ends in .tmp,
// so that programs that read all files of a directory skip it.
func temp(base string) string {
	var random [tempRandom / 2]byte
	_, _ = rand.Read(random[:]) // never fails, as crypto/rand says
	return "." + stem(base) + "." + hex.EncodeToString(random[:]) + ".tmp"
}

// stem shortens base so that a temporary name fits NAME_MAX, 255 bytes.
func stem(base string) string { return base[:min(len(base), 200)] }

// Temp returns a new name, in the directory of name, that Leftovers finds.
func Temp(name string) string { return path.Join(path.Dir(name), temp(path.Base(name))) }

// Leftovers lists the files that an interrupted write of name has left beside it, or
// the directories made under a Temp name.
func (r *Root) Leftovers(name string) ([]string, error) {
	entries, err := r.ReadDir(path.Dir(name))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var found []string
	for _, e := range entries {
		random, ok := strings.CutPrefix(e.Name(), "."+stem(path.Base(name))+".")
		random, isTemp := strings.CutSuffix(random, ".tmp")
		if ok && isTemp && len(random) == tempRandom && strings.Trim(random, "0123456789abcdef") == "" {
			found = append(found, path.Join(path.Dir(name), e.Name()))
		}
	}
	return found, nil
}
