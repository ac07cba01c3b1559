package readiness

import (
	"context"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
	"unicode"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
	"pgregory.net/rapid"

	"github.com/gpuready/gpuready/internal/gpu"
	"github.com/gpuready/gpuready/internal/nodestate"
	"github.com/gpuready/gpuready/test/lab/leak"
)

func TestMain(m *testing.M) { leak.Main(m) }

const otherBoot = "00000000-0000-4000-8000-000000000000"

func proof() Proof {
	return Proof{
		BootID: otherBoot, Time: time.Date(2026, 1, 2, 3, 4, 5, 6, time.UTC),
		Driver:   &nodestate.DriverInfo{Root: "/run/nvidia/driver", Version: "580.95.05", CUDAVersion: "13.0", Simulated: true},
		HostRoot: "/host", DevRoot: "/run/nvidia/driver", GPUs: 2, Summary: "2 GPUs, driver 580.95.05",
		Seconds:   map[gpu.UUID]float64{"GPU-b": 0.031, "GPU-a": 1},
		Resources: map[string]int{"nvidia.com/gpu": 2},
	}
}

func TestAProofReadsAsTheEcosystemExpects(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, WriteReady(dir, Driver, proof()))
	data, err := os.ReadFile(filepath.Join(dir, "driver-ready"))
	require.NoError(t, err)
	require.Equal(t, `LAYER=driver
BOOT_ID=00000000-0000-4000-8000-000000000000
TIME=2026-01-02T03:04:05.000000006Z
SUMMARY='2 GPUs, driver 580.95.05'
GPUS=2
DRIVER_ROOT=/run/nvidia/driver
DRIVER_VERSION=580.95.05
CUDA_VERSION=13.0
SIMULATED=true
IS_HOST_DRIVER=false
NVIDIA_DRIVER_ROOT=/run/nvidia/driver
DRIVER_ROOT_CTR_PATH=/host/run/nvidia/driver
NVIDIA_DEV_ROOT=/run/nvidia/driver
DEV_ROOT_CTR_PATH=/host/run/nvidia/driver
SECONDS_BY_GPU='GPU-a=1 GPU-b=0.031'
RESOURCES='nvidia.com/gpu=2'
`, string(data))
	got, err := Read(dir, Driver, otherBoot)
	require.NoError(t, err)
	require.Nil(t, got.NotReady)
	require.Equal(t, proof(), *got.Proof)

	_, err = Read(dir, Driver, "")
	require.ErrorIs(t, err, ErrStale)
}

func TestALayerIsReadyOrNotAndNeverBoth(t *testing.T) {
	dir := t.TempDir()
	_, err := Read(dir, CUDA, "")
	require.ErrorIs(t, err, fs.ErrNotExist)
	require.NoError(t, WriteReady(dir, CUDA, Proof{GPUs: 1}))
	require.NoError(t, WriteNotReady(dir, CUDA, NotReady{Reason: "WrongResult", Message: "GPU-a\nis wrong", Action: "replace it"}))
	require.NoFileExists(t, filepath.Join(dir, "cuda-ready"))
	s, err := Read(dir, CUDA, "")
	require.NoError(t, err)
	require.Equal(t, "GPU-a is wrong", s.NotReady.Message)
	require.Equal(t, "replace it", s.NotReady.Action)
	require.NoError(t, WriteReady(dir, CUDA, Proof{GPUs: 1}))
	require.NoFileExists(t, filepath.Join(dir, "cuda-notready"))
	s, err = Read(dir, CUDA, "")
	require.NoError(t, err)
	require.Equal(t, 1, s.Proof.GPUs)

	// Somebody else puts a reason beside the proof: it counts.
	data, err := NotReady{Reason: "Odd"}.encode(CUDA)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(notReadyPath(dir, CUDA), data, 0o644))
	s, err = Read(dir, CUDA, "")
	require.NoError(t, err)
	require.Nil(t, s.Proof)

	require.NoError(t, Clear(dir, CUDA))
	_, err = Read(dir, CUDA, "")
	require.ErrorIs(t, err, fs.ErrNotExist)
}

func TestAReasonThatCannotBeWrittenStillTakesTheProofAway(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, WriteReady(dir, Driver, Proof{}))
	require.NoError(t, os.Mkdir(notReadyPath(dir, Driver), 0o755))
	require.Error(t, WriteNotReady(dir, Driver, NotReady{Reason: "X"}))
	require.NoFileExists(t, readyPath(dir, Driver))
}

func TestHostileFilesAreRefused(t *testing.T) {
	good := "LAYER=driver\nBOOT_ID=" + otherBoot + "\nTIME=2026-01-02T03:04:05Z\nGPUS=1\n"
	cases := map[string]string{
		"empty":                  "",
		"cut short":              good[:len(good)-3],
		"no KEY=value":           good + "rm -rf /\n",
		"blank line":             good + "\n",
		"lower-case key":         good + "path=/x\n",
		"is set twice":           good + "GPUS=2\n",
		"command substitution":   good + "SUMMARY=$(reboot)\n",
		"double quotes":          good + "SUMMARY=\"$(reboot)\"\n",
		"second command":         good + "SUMMARY=a;reboot\n",
		"word after the value":   good + "SUMMARY='a' reboot\n",
		"quote in the middle":    good + "SUMMARY='a'b'c'\n",
		"open quote":             good + "SUMMARY='\n",
		"escape sequence":        good + "SUMMARY='\x1b[2J'\n",
		"other layer":            strings.Replace(good, "=driver", "=cuda", 1),
		"no number":              strings.Replace(good, "GPUS=1", "GPUS=one", 1),
		"no time":                strings.Replace(good, "2026", "today", 1),
		"pair without a value":   good + "RESOURCES=nvidia.com/gpu\n",
		"pair without a number":  good + "RESOURCES='nvidia.com/gpu=x'\n",
		"seconds without number": good + "SECONDS_BY_GPU='GPU-a=x'\n",
	}
	for name, content := range cases {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			require.NoError(t, os.WriteFile(readyPath(dir, Driver), []byte(content), 0o644))
			s, err := Read(dir, Driver, otherBoot)
			require.ErrorIs(t, err, ErrInvalid)
			require.Nil(t, s.Proof)
		})
	}
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(readyPath(dir, Driver), []byte(good+"ADDED_LATER=x\n"), 0o644))
	_, err := Read(dir, Driver, otherBoot)
	require.NoError(t, err, "a newer validator may say more")
	require.NoError(t, os.Remove(readyPath(dir, Driver)))
	require.NoError(t, unix.Mkfifo(readyPath(dir, Driver), 0o644))
	_, err = Read(dir, Driver, otherBoot)
	require.ErrorIs(t, err, ErrInvalid)
	require.ErrorContains(t, err, "no regular file")
}

// hostile are values that a careless quoting would let out.
var hostile = []string{"'", "''", `'\''`, `\`, `$(touch x)`, "`touch x`", `"$HOME"`, "a b", "*", "~", "~root", "a;b", "a&b", "é 🚀", "!!", "#x", "${IFS}", `\'`, "=", " ", `end\`}

func TestAShellReadsHostileValuesUnchanged(t *testing.T) {
	shell, err := exec.LookPath("sh")
	if err != nil {
		t.Skip("no sh")
	}
	for _, value := range hostile {
		dir := t.TempDir()
		p := proof()
		p.Driver.Root, p.Driver.Version = "/"+value, value
		require.NoError(t, WriteReady(dir, Driver, p))
		cmd := exec.Command(shell, "-euc", `. ./driver-ready; printf '%s\n%s\n%s' "$DRIVER_VERSION" "$NVIDIA_DRIVER_ROOT" "$SECONDS_BY_GPU"`)
		cmd.Dir = dir
		out, err := cmd.CombinedOutput()
		require.NoError(t, err, "%s", out)
		require.Equal(t, value+"\n/"+value+"\nGPU-a=1 GPU-b=0.031", string(out))
		entries, err := os.ReadDir(dir)
		require.NoError(t, err)
		require.Len(t, entries, 1, "sourcing %q ran something", value)
	}
}

func TestAProofWithAControlCharacterIsNotWritten(t *testing.T) {
	dir := t.TempDir()
	p := proof()
	p.Driver.Version = "580\nPATH=/tmp"
	require.ErrorContains(t, WriteReady(dir, Driver, p), "DRIVER_VERSION has a control character")
	require.NoFileExists(t, readyPath(dir, Driver))
}

func TestAnyProofSurvivesTheRoundTrip(t *testing.T) {
	dir := t.TempDir()
	rapid.Check(t, func(t *rapid.T) {
		text := rapid.OneOf(rapid.SampledFrom(hostile), rapid.StringOf(rapid.RuneFrom(nil, unicode.L, unicode.N, unicode.P, unicode.S)))
		id := rapid.StringMatching(`(GPU|MIG)-[0-9a-f-]{1,36}`)
		want := Proof{
			BootID: otherBoot, Time: time.Unix(rapid.Int64Range(0, 1<<33).Draw(t, "time"), 0).UTC(),
			GPUs: rapid.IntRange(0, 128).Draw(t, "gpus"), Summary: strings.TrimSpace(text.Draw(t, "summary")),
			Driver:   &nodestate.DriverInfo{Root: text.Draw(t, "root"), Version: text.Draw(t, "version"), CUDAVersion: text.Draw(t, "cuda"), Simulated: rapid.Bool().Draw(t, "simulated")},
			HostRoot: "/host", DevRoot: "/dev root",
		}
		for _, u := range rapid.SliceOf(id).Draw(t, "ids") {
			if want.Seconds == nil {
				want.Seconds = map[gpu.UUID]float64{}
			}
			want.Seconds[gpu.UUID(u)] = rapid.Float64Range(0, 1e9).Draw(t, "seconds")
		}
		require.NoError(t, WriteReady(dir, Driver, want))
		got, err := Read(dir, Driver, otherBoot)
		require.NoError(t, err)
		require.True(t, maps.Equal(want.Seconds, got.Proof.Seconds))
		require.Equal(t, want, *got.Proof)
	})
}

func TestWaitReturnsWhenAllLayersAreReady(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "validations")
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	reports, ended := make(chan string), make(chan error)
	go func() {
		ended <- Wait(ctx, dir, []Layer{Driver, Toolkit}, "", func(l Layer, s Status, err error) {
			report := string(l)
			switch {
			case err != nil:
				report += ": " + DescribeError(err)
			case s.Proof != nil:
				report += ": ready"
			default:
				report += ": " + string(s.NotReady.Reason)
			}
			select {
			case reports <- report:
			case <-ctx.Done():
			}
		})
	}()
	require.Equal(t, "driver: the validator has not reported on it yet", <-reports)
	require.Equal(t, "toolkit: the validator has not reported on it yet", <-reports)
	require.NoError(t, WriteReady(dir, Toolkit, Proof{BootID: otherBoot}))
	require.Equal(t, "toolkit: what is known is from an earlier boot", <-reports)
	require.NoError(t, WriteNotReady(dir, Driver, NotReady{Reason: "NoDriver", Message: "none"}))
	require.Equal(t, "driver: NoDriver", <-reports)
	require.NoError(t, WriteReady(dir, Toolkit, Proof{}))
	for report := range reports {
		// Between the old proof's removal and the new proof there may be a check.
		if report == "toolkit: ready" {
			break
		}
	}
	require.NoError(t, WriteReady(dir, Driver, Proof{}))
	for report := range reports {
		if report == "driver: ready" {
			break
		}
	}
	require.NoError(t, <-ended)
}

func TestWatchFollowsALayerBothWays(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, WriteReady(dir, Driver, Proof{}))
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var seen []string
	err := Watch(ctx, dir, []Layer{Driver}, "", func(_ Layer, s Status, err error) {
		switch {
		case s.Proof != nil && len(seen) == 0:
			seen = append(seen, "ready")
			require.NoError(t, WriteNotReady(dir, Driver, NotReady{Reason: "Gone"}))
		case s.NotReady != nil:
			seen = append(seen, string(s.NotReady.Reason))
			require.NoError(t, WriteReady(dir, Driver, Proof{}))
		case s.Proof != nil:
			seen = append(seen, "ready")
			cancel()
		}
	})
	require.ErrorIs(t, err, context.Canceled)
	require.Equal(t, []string{"ready", "Gone", "ready"}, seen)
}

func TestWaitEndsWithTheLayersReason(t *testing.T) {
	dir := t.TempDir()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	err := Wait(ctx, dir, Layers(), "", nil)
	var notReady *NotReadyError
	require.ErrorAs(t, err, &notReady)
	require.Equal(t, Driver, notReady.Layer)
	require.ErrorIs(t, err, context.Canceled)
	require.EqualError(t, err, "driver is not ready: the validator has not reported on it yet")

	require.NoError(t, WriteReady(dir, Driver, Proof{}))
	require.NoError(t, WriteNotReady(dir, Toolkit, NotReady{Reason: "SpecMissing", Message: "no spec names GPU-a"}))
	require.EqualError(t, Wait(ctx, dir, Layers(), "", nil), "toolkit is not ready: SpecMissing: no spec names GPU-a")
	require.NoError(t, Wait(ctx, dir, []Layer{Driver}, "", nil), "what is ready needs no time")
}

func TestParseLayerNamesThoseThereAre(t *testing.T) {
	l, err := ParseLayer("cuda")
	require.NoError(t, err)
	require.Equal(t, CUDA, l)
	_, err = ParseLayer("kubelet")
	require.EqualError(t, err, `unknown layer "kubelet" (known here: driver, toolkit, cuda, plugin, peermem, gds, gdrcopy, mofed, fabric, vfio, vgpu)`)
	l, err = ParseOptional("gds")
	require.NoError(t, err)
	require.Equal(t, GDS, l)
	_, err = ParseOptional("cuda")
	require.ErrorContains(t, err, `unknown layer "cuda" (known here: peermem,`)
}

func FuzzParse(f *testing.F) {
	data, err := proof().encode(Driver)
	require.NoError(f, err)
	f.Add(data)
	f.Add([]byte("A='b'\\''c'\n"))
	f.Add([]byte("A=\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		values, err := parse(data)
		if err != nil {
			require.ErrorIs(t, err, ErrInvalid)
			return
		}
		for name, value := range values {
			again, err := parse([]byte(name + "=" + quote(value) + "\n"))
			require.NoError(t, err)
			require.Equal(t, value, again[name])
		}
		for _, l := range Layers() {
			_, _ = decodeProof(values, l)
			_, _ = decodeNotReady(values, l)
		}
	})
}

func TestALongMessageIsCutBeforeTheNextAction(t *testing.T) {
	long := strings.Repeat("x", 200)
	require.Equal(t, "a b; next: do", Shorten("a\nb; next: do", 40))
	require.Equal(t, strings.Repeat("x", 27)+"…; next: do", Shorten(WithAction(long, "do"), 40))
	require.Equal(t, "short; next: "+strings.Repeat("x", 24)+"…", Shorten(WithAction("short", long), 40))
	require.Equal(t, strings.Repeat("x", 17)+"…; next: "+strings.Repeat("x", 9)+"…", Shorten(WithAction(long, long), 40))
	rapid.Check(t, func(t *rapid.T) {
		limit := rapid.IntRange(20, 60).Draw(t, "limit")
		require.LessOrEqual(t, len(Shorten(WithAction(rapid.String().Draw(t, "message"), rapid.String().Draw(t, "action")), limit)), limit)
	})
}
