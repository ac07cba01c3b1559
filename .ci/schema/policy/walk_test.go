package policy

import (
	"fmt"
	"maps"
	"reflect"
	"regexp"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// free are the fields that a pod of the validator may have with any value, or may have at all
// though the validator does not set them. Why is beside each.
var free = map[string]string{
	"metadata.uid":                                     "the API server sets it",
	"metadata.creationTimestamp":                       "the API server sets it",
	"metadata.generation":                              "the API server sets it",
	"metadata.managedFields":                           "the API server sets it",
	"metadata.labels[gpuready.io/boot]":                "any boot's",
	"spec.activeDeadlineSeconds":                       "up to a day",
	"spec.tolerations":                                 "all taints are tolerated anyway, and the node is its own",
	"spec.tolerations[0].key":                          "",
	"spec.tolerations[0].operator":                     "",
	"spec.tolerations[0].value":                        "",
	"spec.tolerations[0].effect":                       "",
	"spec.tolerations[0].tolerationSeconds":            "",
	"spec.nodeSelector":                                "it may only rule the own node out",
	"spec.priority":                                    "admission refuses all but the class's",
	"spec.overhead":                                    "admission refuses all but the RuntimeClass's",
	"spec.containers[0].imagePullPolicy":               "",
	"spec.containers[0].resizePolicy":                  "the API server sets it",
	"spec.containers[0].resizePolicy[0].resourceName":  "",
	"spec.containers[0].resizePolicy[0].restartPolicy": "",
}

// TestNoFurtherFieldIsAdmitted sets each field of Kubernetes' own types, one at a time,
// and changes each that the validator sets.
func TestNoFurtherFieldIsAdmitted(t *testing.T) {
	for _, role := range []string{proveDriver, provePlugin} {
		visited, used := 0, map[string]bool{}
		admitted := func(path string, p *corev1.Pod) {
			visited++
			if why := evaluate(t, created(p)); why != "" {
				return
			}
			_, is := free[path]
			require.True(t, is, "%s: %s is admitted with another value, or at all", role, path)
			used[path] = true
		}
		w := walk{make: func() *corev1.Pod { return pod(t, role) }, try: admitted}
		w.fields("metadata", func(p *corev1.Pod) reflect.Value { return reflect.ValueOf(&p.ObjectMeta).Elem() })
		w.fields("spec", func(p *corev1.Pod) reflect.Value { return reflect.ValueOf(&p.Spec).Elem() })
		require.ElementsMatch(t, slices.Collect(maps.Keys(free)), slices.Collect(maps.Keys(used)), "%s: what is free is admitted", role)
		require.Greater(t, visited, 150, "fields")
	}
}

// walk changes one field of a pod at a time.
type walk struct {
	make func() *corev1.Pod
	try  func(path string, p *corev1.Pod)
}

// at finds a value within a pod.
type at func(*corev1.Pod) reflect.Value

// change tries a pod with one changed value.
func (w walk) change(path string, find at, change func(reflect.Value)) {
	p := w.make()
	change(find(p))
	w.try(path, p)
}

// fields walks the fields of a struct.
func (w walk) fields(path string, find at) {
	shape := find(w.make()).Type()
	for i := range shape.NumField() {
		field := shape.Field(i)
		name := regexp.MustCompile(`^[^,]*`).FindString(field.Tag.Get("json"))
		inner := func(p *corev1.Pod) reflect.Value { return find(p).Field(i) }
		if name == "" { // embedded
			w.fields(path, inner)
			continue
		}
		w.value(path+"."+name, inner)
	}
}

// value walks a value: it sets an unset one and changes a set one.
func (w walk) value(path string, find at) {
	now := find(w.make())
	switch now.Kind() {
	case reflect.Pointer:
		if now.IsNil() {
			w.change(path, find, func(v reflect.Value) { v.Set(reflect.New(v.Type().Elem())) })
			w.change(path, find, func(v reflect.Value) { fill(v, 0) })
			return
		}
		w.value(path, func(p *corev1.Pod) reflect.Value { return find(p).Elem() })
	case reflect.Struct:
		switch {
		case now.IsZero() || now.Type() == reflect.TypeFor[metav1.Time]():
			w.change(path, find, func(v reflect.Value) { fill(v, 0) })
		default:
			w.fields(path, find)
		}
	case reflect.Slice:
		w.change(path, find, func(v reflect.Value) {
			more := reflect.New(v.Type().Elem()).Elem()
			fill(more, 0)
			v.Set(reflect.Append(v, more))
		})
		if path == "metadata.managedFields" {
			return
		}
		if now.Len() > 0 {
			w.value(path+"[0]", func(p *corev1.Pod) reflect.Value { return find(p).Index(0) })
		}
	case reflect.Map:
		w.change(path, find, func(v reflect.Value) { add(v, "walk.example/walk") })
		for _, key := range now.MapKeys() {
			w.change(fmt.Sprintf("%s[%s]", path, key), find, func(v reflect.Value) { add(v, key.String()) })
		}
	default:
		w.change(path, find, func(v reflect.Value) { changeValue(v) })
	}
}

// add adds an entry to a map.
func add(m reflect.Value, key string) {
	if m.IsNil() {
		m.Set(reflect.MakeMap(m.Type()))
	}
	value := reflect.New(m.Type().Elem()).Elem()
	fill(value, 0)
	m.SetMapIndex(reflect.ValueOf(key).Convert(m.Type().Key()), value)
}

// changeValue changes a simple value.
func changeValue(v reflect.Value) {
	switch v.Kind() {
	case reflect.Bool:
		v.SetBool(!v.Bool())
	case reflect.Int, reflect.Int32, reflect.Int64:
		v.SetInt(v.Int() + 1)
	case reflect.String:
		v.SetString(v.String() + "walk")
	default:
		panic(fmt.Sprintf("a field of kind %s", v.Kind()))
	}
}

// fill fills a value and its parts with non-empty values.
func fill(v reflect.Value, depth int) {
	switch value := v.Addr().Interface().(type) {
	case *resource.Quantity:
		*value = resource.MustParse("7")
		return
	case *metav1.Time:
		*value = metav1.Unix(1, 0)
		return
	case *metav1.FieldsV1:
		*value = *metav1.NewFieldsV1("{}")
		return
	}
	if depth > 8 {
		return
	}
	switch v.Kind() {
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		fill(v.Elem(), depth+1)
	case reflect.Struct:
		for i := range v.NumField() {
			if v.Type().Field(i).IsExported() {
				fill(v.Field(i), depth+1)
			}
		}
	case reflect.Slice:
		if v.Type().Elem().Kind() == reflect.Uint8 {
			v.SetBytes([]byte("{}"))
			return
		}
		v.Set(reflect.MakeSlice(v.Type(), 1, 1))
		fill(v.Index(0), depth+1)
	case reflect.Map:
		v.Set(reflect.MakeMap(v.Type()))
		value := reflect.New(v.Type().Elem()).Elem()
		fill(value, depth+1)
		v.SetMapIndex(reflect.ValueOf("walk.example/walk").Convert(v.Type().Key()), value)
	default:
		changeValue(v)
	}
}
