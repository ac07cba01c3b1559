package apply

import (
	"fmt"
	"maps"
	"slices"
	"strconv"

	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// toMap returns an object's fields, without unset ones and the status.
func toMap(o client.Object) (map[string]any, error) {
	if u, is := o.(*unstructured.Unstructured); is {
		o = u.DeepCopy() // the converter would return its fields, which are changed below
	}
	fields, err := runtime.DefaultUnstructuredConverter.ToUnstructured(o)
	if err != nil {
		return nil, err
	}
	delete(fields, "status")
	return dropUnset(fields), nil
}

// dropUnset removes fields that the encoding of a typed object has although they are not set: null
// fields ("creationTimestamp": null), and the empty objects listed here. Any other empty object is
// intentional, such as the volume {"emptyDir": {}}.
func dropUnset(fields map[string]any) map[string]any {
	for name, value := range fields {
		switch v := value.(type) {
		case nil:
			delete(fields, name)
		case map[string]any:
			if fields[name] = dropUnset(v); len(v) == 0 && slices.Contains([]string{"metadata", "updateStrategy", "resources", "status"}, name) {
				delete(fields, name)
			}
		case []any:
			for _, item := range v {
				if m, isObject := item.(map[string]any); isObject {
					dropUnset(m)
				}
			}
		}
	}
	return fields
}

// firstDifference returns the path of the first field of wanted that differs in live, or "". It
// ignores fields that only live has: they belong to others or to the API server.
func firstDifference(wanted, live client.Object) (string, error) {
	w, err := toMap(wanted)
	if err != nil {
		return "", err
	}
	l, err := toMap(live)
	if err != nil {
		return "", err
	}
	for _, envelope := range []string{"apiVersion", "kind"} { // missing in cached objects
		delete(w, envelope)
	}
	return diffObject("", w, l), nil
}

func diffObject(path string, wanted, live map[string]any) string {
	for _, name := range slices.Sorted(maps.Keys(wanted)) {
		at := path + "." + name
		if name == "limits" || name == "requests" {
			if !equalQuantities(wanted[name], live[name]) {
				return at
			}
			continue
		}
		if d := diffField(at, name, wanted[name], live[name]); d != "" {
			return d
		}
	}
	return ""
}

func diffField(path, name string, wanted, live any) string {
	switch w := wanted.(type) {
	case map[string]any:
		l, isObject := live.(map[string]any)
		if !isObject && len(w) > 0 {
			return path
		}
		return diffObject(path, w, l)
	case []any:
		l, isList := live.([]any)
		if !isList && len(w) > 0 {
			return path
		}
		return diffList(path, name, w, l)
	}
	if isZero(wanted) && live == nil {
		return ""
	}
	if fmt.Sprint(wanted) != fmt.Sprint(live) {
		return path
	}
	return ""
}

// mergeKeys holds the lists whose items the API server merges, each with the field that identifies
// an item. Others may add items to them. Every other list is compared as one value.
var mergeKeys = map[string]string{
	"containers": "name", "initContainers": "name", "volumes": "name", "env": "name",
	"volumeMounts": "mountPath", "volumeDevices": "devicePath", "ports": "containerPort", "imagePullSecrets": "name", "hostAliases": "ip",
}

func diffList(path, name string, wanted, live []any) string {
	key := mergeKeys[name]
	if key == "" && len(wanted) != len(live) {
		return path
	}
	for i, w := range wanted {
		at := path + "[" + strconv.Itoa(i) + "]"
		if key == "" {
			if d := diffField(at, "", w, live[i]); d != "" {
				return d
			}
			continue
		}
		item, _ := w.(map[string]any)
		if name == "ports" && item[key] == nil {
			key = "port" // ports of a Service have no containerPort
		}
		j := slices.IndexFunc(live, func(l any) bool {
			other, _ := l.(map[string]any)
			return fmt.Sprint(item[key]) == fmt.Sprint(other[key])
		})
		if j < 0 {
			return at
		}
		if d := diffField(at, "", w, live[j]); d != "" {
			return d
		}
	}
	return ""
}

// equalQuantities compares resources: "1000m" equals "1".
func equalQuantities(wanted, live any) bool {
	w, _ := wanted.(map[string]any)
	l, _ := live.(map[string]any)
	for name, value := range w {
		a, err := resource.ParseQuantity(fmt.Sprint(value))
		if err != nil {
			return false
		}
		b, err := resource.ParseQuantity(fmt.Sprint(l[name]))
		if err != nil || a.Cmp(b) != 0 {
			return false
		}
	}
	return true
}

// isZero reports whether v is the zero value of its type. The API server may omit such a field.
func isZero(v any) bool { return v == "" || v == false || v == int64(0) || v == float64(0) }
