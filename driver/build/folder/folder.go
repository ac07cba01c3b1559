// Package folder copies folders of files and digests them.
package folder

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// Copy copies a folder. With link, it links to the large objects that some drivers ship, which
// nothing writes to, instead of copying them.
func Copy(ctx context.Context, from, to string, link bool) error {
	from, err := filepath.Abs(from)
	if err != nil {
		return err
	}
	// One time for all, so that make takes no file for older than its inputs.
	now := time.Now()
	return filepath.WalkDir(from, func(path string, d fs.DirEntry, err error) error {
		if err == nil {
			err = ctx.Err()
		}
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(from, path)
		if err != nil {
			return err
		}
		at := filepath.Join(to, rel)
		switch {
		case d.IsDir():
			return os.Mkdir(at, 0o755)
		case d.Type() == fs.ModeSymlink:
			target, err := os.Readlink(path)
			if err != nil {
				return err
			}
			return os.Symlink(target, at)
		case !d.Type().IsRegular():
			return fmt.Errorf("%s: %w", path, errIrregular)
		case link && strings.HasSuffix(rel, ".o_binary"):
			return os.Symlink(path, at)
		}
		if err := CopyFile(path, at); err != nil {
			return err
		}
		return os.Chtimes(at, now, now)
	})
}

var errIrregular = errors.New("it is neither a file, a folder nor a symbolic link")

// CopyFile copies a file with its permissions.
func CopyFile(from, to string) (err error) {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close() //nolint:errcheck // it is only read
	info, err := in.Stat()
	if err != nil {
		return err
	}
	out, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_EXCL, info.Mode().Perm()|0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	return errors.Join(err, out.Close())
}

// CopySum copies from r to w and returns the SHA-256 of the data, in hexadecimal.
func CopySum(w io.Writer, r io.Reader) (string, error) {
	h := sha256.New()
	if _, err := io.Copy(io.MultiWriter(h, w), r); err != nil {
		return "", err
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}

// SumFile returns the SHA-256 of a file, in hexadecimal.
func SumFile(path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	sum, err := CopySum(io.Discard, f)
	return sum, errors.Join(err, f.Close())
}

// Digest is the SHA-256 of a list of texts, each with its length.
type Digest struct{ hash hash.Hash }

// NewDigest returns a Digest of texts, to which more may be added.
func NewDigest(texts ...string) Digest {
	d := Digest{sha256.New()}
	d.Add(texts...)
	return d
}

// Add adds texts.
func (d Digest) Add(texts ...string) {
	for _, s := range texts {
		fmt.Fprintf(d.hash, "%d:%s\n", len(s), s)
	}
}

// AddFiles adds the content of files.
func (d Digest) AddFiles(paths ...string) error {
	for _, path := range paths {
		sum, err := SumFile(path)
		if err != nil {
			return err
		}
		d.Add(sum)
	}
	return nil
}

// String returns the digest so far, in hexadecimal.
func (d Digest) String() string { return hex.EncodeToString(d.hash.Sum(nil)) }

// DigestFolder returns a digest of the names and contents of all files of a folder.
func DigestFolder(ctx context.Context, dir string) (string, error) {
	d := NewDigest("folder")
	err := filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err == nil {
			err = ctx.Err()
		}
		if err != nil || e.IsDir() {
			return err
		}
		rel, err := filepath.Rel(dir, path)
		if err != nil {
			return err
		}
		d.Add(rel)
		switch {
		case e.Type() == fs.ModeSymlink:
			target, err := os.Readlink(path)
			d.Add("link", target)
			return err
		case !e.Type().IsRegular():
			return fmt.Errorf("%s: %w", path, errIrregular)
		}
		return d.AddFiles(path)
	})
	return d.String(), err
}
