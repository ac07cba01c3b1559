package fault

import (
	"bytes"
	"fmt"
	"io/fs"
	"maps"
	"math/rand/v2"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/gpuready/gpuready/internal/host"
)

// Disk is a model of a tree of files on a disk. It replays a trace of the steps of a host.Root, and
// writes a state that POSIX allows after a power loss at any step. A file's bytes, owner and mode are
// safe once it was synced; a name in a directory is safe once the directory was synced. Before that
// they may be lost or not, in any order. A rename is atomic.
type Disk struct{ root *inode }

type inode struct {
	mode   fs.FileMode // type; a directory's permissions as well
	target string      // of a link
	device uint64
	now    content  // of a file
	safe   *content // nil if it was never synced
	dirty  bool     // now is not safe

	names     map[string]*inode // of a directory
	safeNames map[string]*inode
	pending   []naming // since it was synced
}

// naming is one step on a directory: the new targets of its names, nil if removed.
type naming map[string]*inode

type content struct {
	data   []byte
	mode   fs.FileMode
	owner  host.Owner
	xattrs map[string][]byte
}

// PowerLoss selects the unsynced data that a power loss keeps.
type PowerLoss struct {
	Name string
	// names reports whether the next step of a directory is on the disk.
	names func() bool
	// data returns the remaining content of a file; synced is nil if it never was.
	data func(now content, synced *content) content
}

func always() bool { return true }
func never() bool  { return false }

func orEmpty(synced *content) content {
	if synced == nil {
		return content{mode: 0o600}
	}
	return *synced
}

func half(now content) content {
	now.data = now.data[:len(now.data)/2]
	return now
}

// PowerLosses returns the extreme losses, and a random one in between that depends on the
// seed. The first one loses nothing, as after a kill.
func PowerLosses(seed uint64) []PowerLoss {
	random := rand.New(rand.NewPCG(seed, 1))
	return []PowerLoss{
		{"nothing", always, func(now content, _ *content) content { return now }},
		{"everything", never, func(_ content, synced *content) content { return orEmpty(synced) }},
		{"bytes", always, func(_ content, synced *content) content { return orEmpty(synced) }},
		{"half of the bytes", always, func(now content, synced *content) content {
			if synced != nil {
				return *synced
			}
			return half(now)
		}},
		{"some", func() bool { return random.IntN(2) == 0 }, func(now content, synced *content) content {
			return []content{now, half(now), orEmpty(synced)}[random.IntN(3)]
		}},
	}
}

// ReadDisk returns a model of the tree below dir, in which everything is synced.
func ReadDisk(dir string) (*Disk, error) {
	root, err := read(dir)
	return &Disk{root}, err
}

func read(at string) (*inode, error) {
	info, err := os.Lstat(at)
	if err != nil {
		return nil, err
	}
	n := &inode{mode: info.Mode()}
	switch {
	case info.IsDir():
		n.names, n.safeNames = map[string]*inode{}, map[string]*inode{}
		entries, err := os.ReadDir(at)
		if err != nil {
			return nil, err
		}
		for _, e := range entries {
			if n.names[e.Name()], err = read(filepath.Join(at, e.Name())); err != nil {
				return nil, err
			}
		}
		n.safeNames = maps.Clone(n.names)
	case info.Mode()&fs.ModeSymlink != 0:
		n.target, err = os.Readlink(at)
	case info.Mode().IsRegular():
		n.now = content{mode: info.Mode() & host.AttrMode, owner: host.OwnerOf(info)}
		n.now.data, err = os.ReadFile(at)
		n.now.xattrs = xattrs(at)
		safe := n.now
		n.safe = &safe
	case info.Mode()&fs.ModeCharDevice != 0:
		if st, ok := info.Sys().(*syscall.Stat_t); ok {
			n.device = st.Rdev
		}
	default:
		err = fmt.Errorf("%s is a %s", at, info.Mode().Type())
	}
	return n, err
}

// xattrs reads the user attributes; the others belong to the test machine.
func xattrs(at string) map[string][]byte {
	names := make([]byte, 4096)
	n, _ := unix.Llistxattr(at, names)
	all := map[string][]byte{}
	for name := range strings.SplitSeq(string(names[:max(n, 0)]), "\x00") {
		value := make([]byte, 4096)
		if n, err := unix.Lgetxattr(at, name, value); err == nil && strings.HasPrefix(name, "user.") {
			all[name] = bytes.Clone(value[:n])
		}
	}
	return all
}

// find returns the directory of a path and its last part.
func (d *Disk) find(name string) (*inode, string, error) {
	dir := d.root
	parts := strings.Split(strings.Trim(path.Clean(name), "/"), "/")
	for _, part := range parts[:len(parts)-1] {
		if dir = dir.names[part]; dir == nil || dir.names == nil {
			return nil, "", fmt.Errorf("%s: no directory %q", name, part)
		}
	}
	return dir, parts[len(parts)-1], nil
}

func (n *inode) rename(change naming) {
	n.pending = append(n.pending, change)
	set(n.names, change)
}

func set(names map[string]*inode, change naming) {
	for name, n := range change {
		if n == nil {
			delete(names, name)
		} else {
			names[name] = n
		}
	}
}

// Do applies a step to the model. A step that the kernel refuses changes nothing.
func (d *Disk) Do(op host.Op) error {
	if op.Kind == host.OpSyncDir && op.Path == "/" {
		d.root.sync()
		return nil
	}
	dir, base, err := d.find(op.Path)
	if err != nil {
		return err
	}
	n := dir.names[base]
	switch op.Kind {
	case host.OpCreate, host.OpMkdir, host.OpSymlink:
		if n == nil {
			dir.rename(naming{base: newInode(op)})
		}
		return nil
	case host.OpRename:
		_, to, err := d.find(op.To)
		if err == nil && n != nil {
			dir.rename(naming{base: nil, to: n})
		}
		return err
	case host.OpRemove:
		if n != nil && len(n.names) == 0 {
			dir.rename(naming{base: nil})
		}
		return nil
	}
	if n == nil {
		return fmt.Errorf("%s %s: it is not there", op.Kind, op.Path)
	}
	return n.apply(op)
}

func newInode(op host.Op) *inode {
	switch op.Kind {
	case host.OpMkdir:
		return &inode{mode: fs.ModeDir | op.Mode, names: map[string]*inode{}, safeNames: map[string]*inode{}}
	case host.OpSymlink:
		return &inode{mode: fs.ModeSymlink, target: op.To}
	}
	return &inode{dirty: true, now: content{mode: op.Mode, xattrs: map[string][]byte{}}}
}

func (n *inode) apply(op host.Op) error {
	switch op.Kind {
	case host.OpWrite:
		n.now.data = op.Data
	case host.OpChmod:
		n.now.mode = op.Mode
	case host.OpChown:
		n.now.owner = op.Owner
	case host.OpXattr:
		n.now.xattrs = maps.Clone(n.now.xattrs)
		n.now.xattrs[op.To] = op.Data
	case host.OpSync:
		safe := n.now
		n.safe, n.dirty = &safe, false
		return nil
	case host.OpSyncDir:
		n.sync()
		return nil
	default:
		return fmt.Errorf("%s %s: there is no model of it", op.Kind, op.Path)
	}
	n.dirty = true
	return nil
}

func (n *inode) sync() { n.safeNames, n.pending = maps.Clone(n.names), nil }

// Write writes the state after a power loss below dir, an empty directory.
func (d *Disk) Write(dir string, loss PowerLoss) error { return d.root.write(dir, loss) }

func (n *inode) write(at string, loss PowerLoss) error {
	switch {
	case n.names != nil:
		return n.writeDir(at, loss)
	case n.mode&fs.ModeSymlink != 0:
		return os.Symlink(n.target, at)
	case n.mode&fs.ModeCharDevice != 0:
		return unix.Mknod(at, unix.S_IFCHR|uint32(n.mode.Perm()), int(n.device))
	}
	c := n.now
	if n.dirty {
		c = loss.data(n.now, n.safe)
	}
	if err := os.WriteFile(at, c.data, 0o600); err != nil {
		return err
	}
	if err := os.Chown(at, c.owner.UID, c.owner.GID); err != nil && os.Getuid() == 0 {
		return err
	}
	for name, value := range c.xattrs {
		if err := unix.Setxattr(at, name, value, 0); err != nil {
			return err
		}
	}
	return os.Chmod(at, c.mode)
}

func (n *inode) writeDir(at string, loss PowerLoss) error {
	if err := os.Mkdir(at, 0o755); err != nil && !os.IsExist(err) {
		return err
	}
	names := maps.Clone(n.safeNames)
	for _, change := range n.pending {
		if loss.names() {
			set(names, change)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(names)) {
		if err := names[name].write(filepath.Join(at, name), loss); err != nil {
			return err
		}
	}
	return os.Chmod(at, n.mode.Perm())
}

// ListTree describes everything below dir, one line each, to compare trees.
func ListTree(dir string) ([]string, error) {
	var lines []string
	err := filepath.WalkDir(dir, func(p string, e fs.DirEntry, err error) error {
		if err != nil || p == dir {
			return err
		}
		n := &inode{}
		if !e.IsDir() {
			if n, err = read(p); err != nil {
				return err
			}
		}
		info, err := e.Info()
		if err != nil {
			return err
		}
		lines = append(lines, fmt.Sprintf("%s %s %d:%d %d%s %q %v", p[len(dir):], info.Mode(), host.OwnerOf(info).UID, host.OwnerOf(info).GID, n.device, n.target, n.now.data, n.now.xattrs))
		return nil
	})
	return lines, err
}
