package contents

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"time"
)

// RunFile is the name of the file, in the folder of a release, that describes the run that made it.
const RunFile = "run.json"

// Run describes the run of the build that made a release. It is not part of the release, because
// two runs give the same release: it goes into what is signed about the release, its provenance.
type Run struct {
	ID       string    `json:"id"`      // unique: of a CI system, its URI of the run
	Builder  string    `json:"builder"` // who built: a URI
	Started  time.Time `json:"started"`
	Finished time.Time `json:"finished"`
}

var uri = regexp.MustCompile(`^[a-z][a-z0-9+.-]*:[^\s]+$`)

// WriteRun writes the run into the folder of a release.
func WriteRun(dir string, r Run) error {
	if err := r.check(); err != nil {
		return err
	}
	data, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, RunFile), append(data, '\n'), 0o644)
}

// ReadRun reads and checks the run in the folder of a release.
func ReadRun(dir string) (Run, error) {
	path := filepath.Join(dir, RunFile)
	data, err := readBounded(path)
	if errors.Is(err, fs.ErrNotExist) {
		return Run{}, fmt.Errorf("%w; release build writes it", err)
	}
	if err != nil {
		return Run{}, err
	}
	var r Run
	if err = decode(data, &r); err == nil {
		err = r.check()
	}
	if err != nil {
		return Run{}, fmt.Errorf("%s: %w", path, err)
	}
	return r, nil
}

func (r Run) check() error {
	switch {
	case r.ID == "" || len(r.ID) > 1000:
		return errors.New("id: 1 to 1000 characters expected")
	case !uri.MatchString(r.Builder) || len(r.Builder) > 1000:
		return fmt.Errorf("builder: %.100q is not a URI", r.Builder)
	case r.Started.IsZero() || r.Finished.Before(r.Started):
		return fmt.Errorf("finished: %s is not after started, %s", r.Finished, r.Started)
	}
	return nil
}
