package state

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
	"pgregory.net/rapid"
)

// node is a state in which every GPU says n in several distant places.
func node(n uint32) *State {
	s := &State{Ngpus: MaxGPUs, CudaVersion: n}
	for _, g := range s.GPUs() {
		g.Temperature, g.UtilGpu, g.MemoryUsed = n, n, uint64(n)
		g.Link[MaxLinks-1].CrcErrors = uint64(n)
	}
	return s
}

// whole fails unless s came from one call of node.
func whole(s *State) error {
	for i, g := range s.GPUs() {
		n := s.CudaVersion
		if g.Temperature != n || g.UtilGpu != n || g.MemoryUsed != uint64(n) || g.Link[MaxLinks-1].CrcErrors != uint64(n) {
			return fmt.Errorf("GPU %d mixes %d with %d, %d, %d, %d", i, n, g.Temperature, g.UtilGpu, g.MemoryUsed, g.Link[MaxLinks-1].CrcErrors)
		}
	}
	return nil
}

func create(t testing.TB, s *State) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "state")
	require.NoError(t, Create(path, s))
	return path
}

func open2(t testing.TB, path string) (writer, reader *File) {
	t.Helper()
	writer, err := Open(path)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, writer.Close()) })
	reader, err = OpenRead(path)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, reader.Close()) })
	return writer, reader
}

func read(f *File) *State {
	var s State
	f.Read(&s)
	return &s
}

func TestUpdateIsSeenThroughAnotherMapping(t *testing.T) {
	w, r := open2(t, create(t, node(1)))
	require.Equal(t, node(1), read(r))
	require.NoError(t, w.Update(func(s *State) error { *s = *node(2); return nil }))
	require.Equal(t, node(2), read(r))
	require.Equal(t, uint64(1), r.file.Seq)
}

func TestRefusedUpdateChangesNothing(t *testing.T) {
	w, r := open2(t, create(t, node(1)))
	refusal := errors.New("no")
	require.ErrorIs(t, w.Update(func(s *State) error { s.Ngpus = 2; return refusal }), refusal)
	require.ErrorContains(t, w.Update(func(s *State) error { s.Ngpus = 99; return nil }), "99 GPUs; at most 16 fit")
	require.ErrorContains(t, r.Update(func(*State) error { return nil }), "it was opened for reading")
	require.ErrorContains(t, r.Emit(Event{}), "it was opened for reading")
	require.Equal(t, node(1), read(r))
	require.Zero(t, r.file.Seq)
	require.Zero(t, r.file.Wake)
}

func TestKilledWriterLeavesReadersAndTheNextWriterFine(t *testing.T) {
	w, r := open2(t, create(t, node(1)))
	// A writer that dies has written some of the slot that is not in force.
	garbage := node(66)
	store(&w.file.Slot[(w.file.Seq+1)&1].Gpu[3], &garbage.Gpu[3])
	require.Equal(t, node(1), read(r))
	require.NoError(t, w.Update(func(s *State) error { s.Gpu[0].Temperature = 7; return nil }))
	want := node(1)
	want.Gpu[0].Temperature = 7
	require.Equal(t, want, read(r))
}

func TestReadersNeverSeeHalfAnUpdate(t *testing.T) {
	w, r := open2(t, create(t, node(0)))
	var stop atomic.Bool
	var readers sync.WaitGroup
	results := make(chan error, 3)
	for range cap(results) {
		readers.Go(func() {
			var s State
			for last := uint32(0); !stop.Load(); {
				r.Read(&s)
				if err := whole(&s); err != nil {
					results <- err
					return
				}
				if s.CudaVersion < last {
					results <- fmt.Errorf("went back from %d to %d", last, s.CudaVersion)
					return
				}
				last = s.CudaVersion
			}
		})
	}
	for n := uint32(1); n <= 150; n++ {
		require.NoError(t, w.Update(func(s *State) error { *s = *node(n); return nil }))
	}
	stop.Store(true)
	readers.Wait()
	close(results)
	for err := range results {
		require.NoError(t, err)
	}
}

func TestAnySequenceOfChangesBehavesLikeAPlainVariable(t *testing.T) {
	path := create(t, node(0))
	rapid.Check(t, func(t *rapid.T) {
		if err := Create(path, node(0)); err != nil {
			t.Fatal(err)
		}
		w, err := Open(path)
		if err != nil {
			t.Fatal(err)
		}
		defer w.Close()
		model, events := node(0), uint64(0)
		t.Repeat(map[string]func(*rapid.T){
			"update": func(t *rapid.T) {
				i := rapid.IntRange(0, MaxGPUs-1).Draw(t, "gpu")
				value := rapid.Uint32().Draw(t, "temperature")
				model.Gpu[i].Temperature = value
				if err := w.Update(func(s *State) error { s.Gpu[i].Temperature = value; return nil }); err != nil {
					t.Fatal(err)
				}
			},
			"killed": func(t *rapid.T) {
				i := rapid.IntRange(0, MaxGPUs-1).Draw(t, "gpu")
				garbage := GPU{Temperature: rapid.Uint32().Draw(t, "garbage")}
				store(&w.file.Slot[(w.file.Seq+1)&1].Gpu[i], &garbage)
			},
			"emit": func(t *rapid.T) {
				n := rapid.IntRange(1, MaxEvents+3).Draw(t, "events")
				batch := make([]Event, n)
				for i := range batch {
					batch[i].Data = events
					events++
				}
				if err := w.Emit(batch...); err != nil {
					t.Fatal(err)
				}
			},
			"compare": func(t *rapid.T) {
				if *read(w) != *model {
					t.Fatal("the state differs from the model")
				}
				got := w.Events(0)
				if want := min(events, MaxEvents); uint64(len(got)) != want {
					t.Fatalf("%d events, want %d", len(got), want)
				}
				for i, e := range got {
					want := events - uint64(len(got)) + uint64(i)
					if e.Number != want || e.Data != want || e.Ns == 0 {
						t.Fatalf("event %d is %+v", want, e)
					}
				}
			},
		})
	})
}

func TestEventsFollowTheChangeThatCausedThem(t *testing.T) {
	w, r := open2(t, create(t, node(0)))
	const updates = 100
	done := make(chan error, 1)
	go func() {
		for next := uint64(0); next < updates; {
			for _, e := range r.Events(next) {
				if s := read(r); uint64(s.CudaVersion) < e.Data {
					done <- fmt.Errorf("event %d came before its change: %d", e.Data, s.CudaVersion)
					return
				}
				next = e.Number + 1
			}
			runtime.Gosched()
		}
		done <- nil
	}()
	for n := uint32(1); n <= updates; n++ {
		require.NoError(t, w.Update(func(s *State) error { *s = *node(n); return nil }, func() []Event { return []Event{{Type: 8, Data: uint64(n)}} }))
	}
	require.NoError(t, <-done)
}

func TestWakeReachesSleeperOnAReadOnlyMapping(t *testing.T) {
	w, r := open2(t, create(t, node(0)))
	woken := make(chan syscall.Errno, 1)
	go func() {
		const futexWait = 0
		patience := unix.Timespec{Sec: 60}
		for {
			seen := atomic.LoadUint32(&r.file.Wake)
			_, _, errno := unix.Syscall6(unix.SYS_FUTEX, uintptr(unsafe.Pointer(&r.file.Wake)), futexWait, uintptr(seen),
				uintptr(unsafe.Pointer(&patience)), 0, 0)
			if errno != unix.EAGAIN && errno != unix.EINTR {
				woken <- errno
				return
			}
		}
	}()
	for {
		select {
		case errno := <-woken:
			require.Zero(t, errno, "it slept until its patience ended")
			return
		default:
			require.NoError(t, w.Emit(Event{}))
			runtime.Gosched()
		}
	}
}

const workerEnv = "GPUSIM_STATE_TEST_WORKER"

// TestMain lets the test binary be the second writer process of a test.
func TestMain(m *testing.M) {
	path := os.Getenv(workerEnv)
	if path == "" {
		os.Exit(m.Run())
	}
	if err := work(path); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

const additions = 100

func work(path string) error {
	f, err := Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	for range additions {
		err := f.Update(func(s *State) error { s.Gpu[0].MemoryUsed++; return nil }, func() []Event { return []Event{{Data: 1}} })
		if err != nil {
			return err
		}
	}
	return nil
}

func TestWriterProcessesTakeTurns(t *testing.T) {
	path := create(t, node(0))
	var writers [2]*exec.Cmd
	for i := range writers {
		writers[i] = exec.Command(os.Args[0])
		writers[i].Env = append(os.Environ(), workerEnv+"="+path)
		writers[i].Stderr = os.Stderr
		require.NoError(t, writers[i].Start())
	}
	require.NoError(t, work(path))
	for _, w := range writers {
		require.NoError(t, w.Wait())
	}
	_, r := open2(t, path)
	require.EqualValues(t, 3*additions, read(r).Gpu[0].MemoryUsed)
	require.EqualValues(t, 3*additions, r.file.Head)
}

func TestOpenRefusesInvalidFiles(t *testing.T) {
	good, err := os.ReadFile(create(t, node(1)))
	require.NoError(t, err)
	patched := func(offset uintptr, value uint32) []byte {
		data := append([]byte(nil), good...)
		binary.LittleEndian.PutUint32(data[offset:], value)
		return data
	}
	var f file
	for name, c := range map[string]struct {
		data []byte
		want string
	}{
		"empty":     {nil, "it has 0 bytes"},
		"truncated": {good[:len(good)-1], "truncated"},
		"longer":    {append(append([]byte(nil), good...), 0), "another version"},
		"magic":     {patched(unsafe.Offsetof(f.Magic), 1), "wrong magic number"},
		"layout":    {patched(unsafe.Offsetof(f.Layout), 99), "layout 99, this program knows 5"},
		"size":      {patched(unsafe.Offsetof(f.Size), 5), "it says that it has 5 bytes"},
		"gpus":      {patched(unsafe.Offsetof(f.Slot)+unsafe.Offsetof(f.Slot[0].Ngpus), 17), "17 GPUs; at most 16 fit"},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "state")
			require.NoError(t, os.WriteFile(path, c.data, 0o600))
			_, err := Open(path)
			require.ErrorIs(t, err, ErrInvalid)
			require.ErrorContains(t, err, c.want)
			require.ErrorContains(t, err, path)
		})
	}
	_, err = Open(filepath.Join(t.TempDir(), "none"))
	require.ErrorIs(t, err, fs.ErrNotExist)
	_, err = OpenRead(t.TempDir())
	require.ErrorIs(t, err, ErrInvalid)
}

func TestCreateIsAtomic(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "state")
	// A left-over of a writer that was killed before its rename.
	require.NoError(t, os.WriteFile(filepath.Join(dir, ".new-state"), []byte("half"), 0o400))
	require.ErrorContains(t, Create(path, &State{Ngpus: 17}), "17 GPUs")
	require.NoFileExists(t, path)
	require.NoError(t, Create(path, node(3)))
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Len(t, entries, 1)
	info, err := os.Stat(path)
	require.NoError(t, err)
	require.Equal(t, fs.FileMode(0o644), info.Mode())
	require.Equal(t, int64(Size), info.Size())
}

func TestSetTextRefusesWhatDoesNotFit(t *testing.T) {
	var b [8]byte
	copy(b[:], "XXXXXXX")
	require.NoError(t, SetText(b[:], "abc"))
	require.Equal(t, [8]byte{'a', 'b', 'c'}, b)
	require.Equal(t, "abc", Text(b[:]))
	require.ErrorContains(t, SetText(b[:], "12345678"), "8 bytes long")
	require.Equal(t, "abc", Text(b[:]))
}

// FuzzOpen changes one place of a good file; opening it ends in an error that
// names the file or in a state that is safe to read.
func FuzzOpen(f *testing.F) {
	good, err := os.ReadFile(create(f, node(1)))
	require.NoError(f, err)
	path := filepath.Join(f.TempDir(), "state")
	f.Add(0, []byte{1, 2, 3}, Size)
	f.Add(16, []byte{0xff, 0xff, 0xff, 0xff}, Size)
	f.Add(int(unsafe.Offsetof(file{}.Slot)), []byte(strings.Repeat("x", 128)), Size)
	f.Add(0, []byte{}, 10)
	f.Fuzz(func(t *testing.T, offset int, patch []byte, size int) {
		data := append([]byte(nil), good...)
		if offset >= 0 && offset < len(data) {
			copy(data[offset:], patch)
		}
		data = data[:max(0, min(size, len(data)))]
		require.NoError(t, os.WriteFile(path, data, 0o600))
		opened, err := Open(path)
		if err != nil {
			require.ErrorIs(t, err, ErrInvalid)
			return
		}
		defer opened.Close()
		s := read(opened)
		require.NoError(t, s.Validate())
		for _, g := range s.GPUs() {
			_ = Text(g.Uuid[:]) + g.Pci.Address()
			_, _ = g.Link[:g.Nlinks], g.GiProfile[:g.NGiProfiles]
		}
		_ = opened.Events(0)
		require.NoError(t, opened.Emit(Event{}))
	})
}

// TestGoAndCAgreeOnTheLayout asks the C compiler where things lie.
func TestGoAndCAgreeOnTheLayout(t *testing.T) {
	cc, err := exec.LookPath("cc")
	if err != nil {
		t.Skip("no C compiler (cc)")
	}
	var f file
	layout := []struct {
		c    string
		goes uintptr
	}{
		{"sizeof(struct gpusim_file)", unsafe.Sizeof(f)},
		{"sizeof(struct gpusim_state)", unsafe.Sizeof(f.Slot[0])},
		{"sizeof(struct gpusim_gpu)", unsafe.Sizeof(f.Slot[0].Gpu[0])},
		{"sizeof(struct gpusim_event)", unsafe.Sizeof(f.Event[0])},
		{"sizeof(struct gpusim_link)", unsafe.Sizeof(f.Slot[0].Gpu[0].Link[0])},
		{"sizeof(struct gpusim_gi_profile)", unsafe.Sizeof(f.Slot[0].Gpu[0].GiProfile[0])},
		{"sizeof(struct gpusim_ci)", unsafe.Sizeof(f.Slot[0].Gpu[0].Ci[0])},
		{"sizeof(struct gpusim_proc)", unsafe.Sizeof(f.Slot[0].Gpu[0].Proc[0])},
		{"offsetof(struct gpusim_file, wake)", unsafe.Offsetof(f.Wake)},
		{"offsetof(struct gpusim_file, slot)", unsafe.Offsetof(f.Slot)},
		{"offsetof(struct gpusim_state, call_cost_ns)", unsafe.Offsetof(f.Slot[0].CallCostNs)},
		{"offsetof(struct gpusim_state, gpu)", unsafe.Offsetof(f.Slot[0].Gpu)},
		{"offsetof(struct gpusim_gpu, proc)", unsafe.Offsetof(f.Slot[0].Gpu[0].Proc)},
		{"offsetof(struct gpusim_gpu, memory_total)", unsafe.Offsetof(f.Slot[0].Gpu[0].MemoryTotal)},
	}
	program := "#include <stddef.h>\n#include <stdio.h>\n#include \"state.h\"\nint main(void) {\n"
	for _, l := range layout {
		program += "printf(\"%zu\\n\", " + l.c + ");\n"
	}
	binary := filepath.Join(t.TempDir(), "layout")
	compile := exec.Command(cc, "-I.", "-xc", "-o", binary, "-")
	compile.Stdin = strings.NewReader(program + "}\n")
	out, err := compile.CombinedOutput()
	require.NoError(t, err, string(out))
	out, err = exec.Command(binary).Output()
	require.NoError(t, err)
	for i, line := range strings.Fields(string(out)) {
		require.Equal(t, strconv.Itoa(int(layout[i].goes)), line, layout[i].c)
		require.Zero(t, layout[i].goes%8, "%s: load and store copy whole words", layout[i].c)
	}
}

// TestGeneratedTypesAreFresh runs the generator again.
func TestGeneratedTypesAreFresh(t *testing.T) {
	if _, err := exec.LookPath("cc"); err != nil {
		t.Skip("no C compiler (cc)")
	}
	fresh := filepath.Join(t.TempDir(), "fresh.go")
	out, err := exec.Command("./generate.sh", fresh).CombinedOutput()
	require.NoError(t, err, string(out))
	want, err := os.ReadFile(fresh)
	require.NoError(t, err)
	got, err := os.ReadFile("state_generated.go")
	require.NoError(t, err)
	require.Equal(t, string(want), string(got), "run go generate ./simulator/state")
}

func BenchmarkUpdate(b *testing.B) {
	w, _ := open2(b, create(b, node(0)))
	for b.Loop() {
		if err := w.Update(func(s *State) error { s.Gpu[0].Temperature++; return nil }); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(Size), "file-bytes")
}
