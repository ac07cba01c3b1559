package health

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/gpuready/gpuready/internal/gpu"
)

// Environment variables of NVIDIA's device plugin.
const (
	DisableVariable = "DP_DISABLE_HEALTHCHECKS"
	EnableVariable  = "DP_ENABLE_HEALTHCHECKS"
)

// ParseDisable reads the two variables of NVIDIA's device plugin as k8s-device-plugin
// documents them in internal/rm/health.go: comma-separated lists of XIDs to ignore and
// of XIDs to heed. An XID in both is heeded. "all", or "xids", stands for every XID. With "all"
// ignored, the XIDs to heed are the exceptions; with "all" heeded nothing is ignored,
// whatever else is listed. Blank entries are skipped. An unknown entry is an error: its
// author relies on it. NVIDIA's device plugin skips it.
func ParseDisable(disable, enable string) (Changes, error) {
	ignored, ignoreAll, err := parseXIDs(DisableVariable, disable)
	if err != nil {
		return Changes{}, err
	}
	heeded, heedAll, err := parseXIDs(EnableVariable, enable)
	if err != nil {
		return Changes{}, err
	}
	var c Changes
	switch {
	case heedAll:
		return Changes{Every: gpu.ActionUnhealthy}, nil
	case ignoreAll:
		c.Every = gpu.ActionIgnore
	}
	if len(ignored)+len(heeded) > 0 {
		c.XIDs = map[uint64]Rule{}
	}
	for _, xid := range ignored {
		c.XIDs[xid] = Rule{Action: gpu.ActionIgnore}
	}
	for _, xid := range heeded {
		c.XIDs[xid] = Rule{Action: gpu.ActionUnhealthy}
	}
	return c, nil
}

// parseXIDs parses one of the lists.
func parseXIDs(variable, text string) (xids []uint64, all bool, err error) {
	for entry := range strings.SplitSeq(text, ",") {
		switch entry = strings.ToLower(strings.TrimSpace(entry)); entry {
		case "":
			continue
		case "all", "xids":
			all = true
			continue
		}
		xid, err := strconv.ParseUint(entry, 10, 32)
		if err != nil || xid == 0 {
			return nil, false, fmt.Errorf("%s: %q is not an XID: write XIDs separated by commas, as in 48,79, or all", variable, entry)
		}
		xids = append(xids, xid)
	}
	return xids, all, nil
}
