package daemons

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestSettingsAreStrict(t *testing.T) {
	for variable, want := range map[string]string{
		"NVFM_CONFIG_=1":                            `variable "NVFM_CONFIG_": the part after NVFM_CONFIG_ must be a key of fabricmanager.cfg, in capital letters, digits and _`,
		"NVFM_CONFIG_fabric_mode=1":                 `variable "NVFM_CONFIG_fabric_mode": the part after NVFM_CONFIG_ must be a key of fabricmanager.cfg, in capital letters, digits and _`,
		"NVFM_CONFIG_A B=1":                         `variable "NVFM_CONFIG_A B": the part after NVFM_CONFIG_ must be a key of fabricmanager.cfg, in capital letters, digits and _`,
		"NVFM_CONFIG_A=1\nB=2":                      `variable NVFM_CONFIG_A: the value "1\nB=2" has a line break or another control character; remove it`,
		"NVFM_CONFIG_A=\xff":                        `variable NVFM_CONFIG_A: the value "\xff" has a line break or another control character; remove it`,
		"NVFM_CONFIG_A= 1":                          `variable NVFM_CONFIG_A: the value " 1" begins or ends with a space; remove it`,
		"NVFM_CONFIG_DAEMONIZE=0":                   `variable NVFM_CONFIG_DAEMONIZE: the way the fabric manager runs cannot be configured; remove the variable`,
		"NVFM_CONFIG_LOG_LEVEL=3":                   `variable NVFM_CONFIG_LOG_LEVEL is set twice; remove one`,
		"NVFM_CONFIG_A=" + strings.Repeat("x", 257): `variable NVFM_CONFIG_A: the value has 257 bytes; write at most 256`,
	} {
		_, err := parseSettings([]string{"NVFM_CONFIG_LOG_LEVEL=4", variable})
		require.EqualError(t, err, want, "%q", variable)
	}
	all, err := parseSettings([]string{"NVFM_CONFIG_Z=", "NVFM_CONFIGURE=1", "nvfm_config_a=1", "NVFM_CONFIG_A=b=c|&\\"})
	require.NoError(t, err)
	require.Equal(t, []Setting{{Key: "A", Value: `b=c|&\`, From: "NVFM_CONFIG_A"}, {Key: "Z", From: "NVFM_CONFIG_Z"}}, all)
}

func TestConfigureKeepsOtherLines(t *testing.T) {
	data, applied, err := replaceSettings([]byte("# A=0\r\n\n A = 1 \nB=2\nA=3"), []Setting{{Key: "A", Value: "x"}, {Key: "C", Value: "y"}})
	require.NoError(t, err)
	require.Equal(t, "# A=0\n\nA=x\nB=2\nA=x\nC=y\n", string(data))
	require.Equal(t, []Setting{{Key: "A", Value: "x", Was: "3"}, {Key: "C", Value: "y", Added: true}}, applied)
}

// FuzzConfigure parses each written file: all settings are present, other lines are unchanged,
// and nothing else was added.
func FuzzConfigure(f *testing.F) {
	f.Add([]byte(fabricFile), "LOG_LEVEL", "3")
	f.Add([]byte("A=1\r\n#\n=\n"), "A", "=")
	f.Add([]byte("A=1\vB=2"), "B", "#")
	f.Fuzz(func(t *testing.T, data []byte, key, value string) {
		settings, err := parseSettings([]string{settingPrefix + key + "=" + value})
		if err != nil {
			return
		}
		if len(settings) != 1 || settings[0].Key+"="+settings[0].Value != key+"="+value && !strings.Contains(key, "=") {
			t.Fatalf("%q=%q became %+v", key, value, settings)
		}
		set := settings[0]
		before, err := parseConfig(data)
		if err != nil {
			return
		}
		written, _, err := replaceSettings(data, settings)
		require.NoError(t, err)
		after, err := parseConfig(written)
		require.NoError(t, err)
		require.Equal(t, set.Value, lookUpKey(written, set.Key))
		var added int
		for i, l := range after {
			if l.key != set.Key {
				require.Equal(t, before[i].key, l.key)
				require.Equal(t, before[i].value, l.value)
				continue
			}
			require.Equal(t, set.Value, l.value)
			if i >= len(before) {
				added++
			}
		}
		require.Len(t, after, len(before)+added)
		require.LessOrEqual(t, added, 1)
		again, _, err := replaceSettings(written, settings)
		require.NoError(t, err)
		require.Equal(t, string(written), string(again))
	})
}
