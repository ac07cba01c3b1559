package request

import (
	"os"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestEncodeAndDecodeRoundTrip(t *testing.T) {
	s := DefaultSettings()
	s.Runtimes = []string{"/usr/bin/crun"}
	s.AcceptEnvvar = true
	data, err := s.Encode()
	require.NoError(t, err)
	back, err := decodeSettings(data)
	require.NoError(t, err)
	require.Equal(t, s, back)
	s.Runtimes = nil
	_, err = s.Encode()
	require.ErrorContains(t, err, "runtimes")
}

func TestDecode(t *testing.T) {
	s, err := decodeSettings([]byte(`{}`))
	require.NoError(t, err)
	require.Equal(t, DefaultSettings(), s)
	require.False(t, s.AcceptEnvvar)
	require.False(t, s.AcceptVolumeMounts)
	for content, want := range map[string]string{
		``:                             "it is empty",
		`{"runtimes":["crun"]`:         "cut short",
		`{} {}`:                        "there is more data",
		`{"runtime":["crun"]}`:         `unknown field "runtime"`,
		`{"runtimes":[]}`:              "runtimes: none is named",
		`{"runtimes":["bin/runc"]}`:    "neither a name nor an absolute path",
		`{"spec-dirs":["cdi"]}`:        "not an absolute path",
		`{"spec-dirs":[]}`:             "spec-dirs: none",
		`{"annotation-prefixes":[""]}`: "every annotation",
		`[]`:                           "cannot unmarshal array",
		`{"spec-dirs":"/etc/cdi"}`:     "cannot unmarshal string",
	} {
		s, err := decodeSettings([]byte(content))
		require.ErrorContains(t, err, want, content)
		require.Equal(t, DefaultSettings(), s, content)
	}
}

func TestBrokenSettingsStillNameTheRuntime(t *testing.T) {
	for _, content := range []string{
		`{"runtimes":["/opt/crun"],"accept":true}`,
		`{"runtimes":["/opt/crun"],"spec-dirs":"x"}`,
		`{"runtimes":["/opt/crun"],"spec-dirs":[]}`,
	} {
		s, err := decodeSettings([]byte(content))
		require.Error(t, err)
		require.Equal(t, []string{"/opt/crun"}, s.Runtimes, content)
		require.False(t, s.AcceptEnvvar)
	}
}

func TestReadBesideTheProgram(t *testing.T) {
	dir := t.TempDir()
	s, err := ReadSettings(dir + "/gpu-oci-runtime")
	require.NoError(t, err)
	require.Equal(t, DefaultSettings(), s)
	require.NoError(t, os.WriteFile(dir+"/"+SettingsFile, []byte(`{"x":1}`), 0o644))
	_, err = ReadSettings(dir + "/gpu-oci-runtime")
	require.ErrorContains(t, err, dir+"/"+SettingsFile)
	require.NoError(t, os.WriteFile(dir+"/"+SettingsFile, make([]byte, maxBytes+1), 0o644))
	_, err = ReadSettings(dir + "/gpu-oci-runtime")
	require.ErrorContains(t, err, "more than")
}

func FuzzDecode(f *testing.F) {
	f.Add([]byte(`{"runtimes":["runc"]}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		s, err := decodeSettings(data)
		if s.check() != nil {
			t.Fatalf("%q: %+v", data, s)
		}
		if err != nil {
			return
		}
		if _, err := s.Encode(); err != nil {
			t.Fatal(err)
		}
	})
}
