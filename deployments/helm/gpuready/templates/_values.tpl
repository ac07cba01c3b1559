{{- /* Reads the values, once, and changes .Values in place. Each template that uses values
       includes it first.

       Null becomes the default. Values get the type of their field: 570 becomes "570", "true"
       becomes true. A key that resembles another one is a typing error and is refused. Other
       unknown keys are dropped. ValueNotes, beside .Values, lists what has no effect. */}}
{{- define "gpuready.readValues" -}}
{{- if not (hasKey . "ValueNotes") }}
{{- $data := .Files.Get "files/values.json" | fromJson }}
{{- $table := .Files.Get "files/nvidia-values.yaml" | fromYamlArray }}
{{- $ignored := .Files.Get "files/ignored-fields.yaml" | fromYamlArray }}
{{- $found := dict "refused" list "unknown" list "notes" list "ignored" $ignored }}
{{- include "gpuready.setDefaults" (list .Values $data.defaults $data.keys) }}
{{- include "gpuready.readMap" (dict "value" .Values "kind" $data.keys "path" "" "found" $found) }}
{{- with $found.refused }}
{{- fail (join "\n" . | printf "\n%s") }}
{{- end }}
{{- $notes := list }}
{{- range $entry := concat $table $ignored }}
{{- $box := dict "root" $ "key" $entry.key }}
{{- include "gpuready.getValue" $box }}
{{- if and $entry.as (hasKey $box "value") }}
{{- include "gpuready.setValue" (dict "root" $ "key" $entry.as "value" $box.value) }}
{{- end }}
{{- if and $entry.why (include "gpuready.isNoted" (dict "root" $ "entry" $entry "box" $box)) }}
{{- $notes = append $notes (list $entry.key (list $entry.why $entry.do | compact | join ": ")) }}
{{- end }}
{{- end }}
{{- include "gpuready.readOperatorImage" (list . $found) }}
{{- if and (eq .Values.draDriver.serve "dra") (not .Values.draDriver.enabled) }}
{{- $_ := set $found "notes" (append $found.notes (list "draDriver.serve" "the DRA driver is off, and nodes keep the device plugin: set draDriver.enabled to true, or draDriver.serve to plugin")) }}
{{- end }}
{{- $notes = concat $notes $found.notes $found.unknown | uniq }}
{{- /* One line for each reason. */}}
{{- $lines := list }}
{{- $keys := dict }}
{{- range $notes }}
{{- $why := index . 1 }}
{{- if not (hasKey $keys $why) }}
{{- $lines = append $lines $why }}
{{- end }}
{{- $_ := set $keys $why (append (get $keys $why | default list) (index . 0)) }}
{{- end }}
{{- $all := list }}
{{- range $lines }}
{{- $all = append $all (printf "%s: %s" (get $keys . | join ", ") .) }}
{{- end }}
{{- $_ := set . "ValueNotes" $all }}
{{- end }}
{{- end }}

{{- /* Sets the values that are missing or null: list values defaults kinds. A list, or a map
       with any keys, stays empty: so users remove a default. */}}
{{- define "gpuready.setDefaults" -}}
{{- $values := index . 0 }}
{{- $kinds := index . 2 }}
{{- range $name, $default := index . 1 }}
{{- $value := get $values $name }}
{{- $kind := get $kinds $name }}
{{- $isSection := and (kindIs "map" $default) (kindIs "map" $kind) (omit (kindIs "map" $kind | ternary $kind dict) "*") }}
{{- if or (not (hasKey $values $name)) (kindIs "invalid" $value) }}
{{- if or $isSection (not (or (kindIs "map" $default) (kindIs "slice" $default))) }}
{{- $_ := set $values $name (deepCopy $default) }}
{{- end }}
{{- else if and $isSection (kindIs "map" $value) }}
{{- include "gpuready.setDefaults" (list $value $default $kind) }}
{{- end }}
{{- end }}
{{- end }}

{{- /* Reads the values of a map: value, kind, path, found. */}}
{{- define "gpuready.readMap" -}}
{{- $map := . }}
{{- range $name, $value := .value }}
{{- $path := list $map.path $name | compact | join "." }}
{{- $kind := get $map.kind $name | default (get $map.kind "*") }}
{{- if kindIs "invalid" $value }}
{{- $_ := unset $map.value $name }}
{{- else if $kind }}
{{- $box := dict "value" $value "kind" $kind "path" $path "found" $map.found }}
{{- include "gpuready.readValue" $box }}
{{- if hasKey $box "value" }}
{{- $_ := set $map.value $name $box.value }}
{{- else }}
{{- $_ := unset $map.value $name }}
{{- end }}
{{- else }}
{{- $_ := unset $map.value $name }}
{{- $nearest := include "gpuready.nearest" (list $name (keys $map.kind | sortAlpha)) }}
{{- if $nearest }}
{{- $meant := list $map.path $nearest | compact | join "." }}
{{- $_ := set $map.found "refused" (append $map.found.refused (printf "%s is unknown; do you mean %s?" $path $meant)) }}
{{- else if include "gpuready.isSet" $value }}
{{- $why := "unknown here" }}
{{- $meant := list }}
{{- range $parent, $kind := $map.kind }}
{{- if hasKey (kindIs "map" $kind | ternary $kind dict) $name }}
{{- $meant = append $meant (list $map.path $parent $name | compact | join ".") }}
{{- end }}
{{- end }}
{{- if and $meant (le (len $meant) 2) }}
{{- $why = printf "unknown here; is %s meant?" (join " or " $meant) }}
{{- end }}
{{- $_ := set $map.found "unknown" (append $map.found.unknown (list $path $why)) }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}

{{- /* Reads one value, which is not null: value, kind, path, found. The kind is that of
       files/values.json. The value is converted, or unset if it cannot be. */}}
{{- define "gpuready.readValue" -}}
{{- $box := . }}
{{- $text := toString .value | lower }}
{{- $isPlain := not (or (kindIs "map" .value) (kindIs "slice" .value)) }}
{{- $wanted := "" }}
{{- if kindIs "map" .kind }}
{{- if kindIs "map" .value }}
{{- include "gpuready.readMap" . }}
{{- else }}
{{- $wanted = "a map" }}
{{- end }}
{{- else if kindIs "slice" .kind }}
{{- $kind := first .kind }}
{{- if and $isPlain (eq "string" (toString $kind)) }}
{{- $_ := set . "value" (list .value) }}
{{- end }}
{{- if kindIs "slice" .value }}
{{- $items := list }}
{{- range .value }}
{{- if not (kindIs "invalid" .) }}
{{- $item := dict "value" . "kind" $kind "path" (printf "%s[]" $box.path) "found" $box.found }}
{{- include "gpuready.readValue" $item }}
{{- if hasKey $item "value" }}
{{- $items = append $items $item.value }}
{{- end }}
{{- end }}
{{- end }}
{{- $_ := set . "value" $items }}
{{- else }}
{{- $wanted = "a list" }}
{{- end }}
{{- else if eq .kind "boolean" }}
{{- if has $text (list "true" "false") }}
{{- $_ := set . "value" (eq $text "true") }}
{{- else if eq $text "" }}
{{- $_ := unset . "value" }}
{{- else }}
{{- $wanted = "true or false" }}
{{- end }}
{{- else if eq .kind "integer" }}
{{- if eq $text "" }}
{{- $_ := unset . "value" }}
{{- else if and $isPlain (regexMatch "^-?[0-9]+$" (toString .value)) }}
{{- $_ := set . "value" (int64 .value) }}
{{- else if not (typeIs "float64" .value) }}
{{- $wanted = "a number" }}
{{- end }}
{{- else if eq .kind "string" "switch" }}
{{- if and (eq .kind "switch") (kindIs "bool" .value) }}
{{- $_ := set . "value" (ternary "on" "off" .value) }}
{{- else if and (kindIs "map" .value) (eq "name" (keys .value | join ",")) (hasSuffix "[]" .path) }}
{{- $_ := set . "value" (toString .value.name) }}
{{- else if not $isPlain }}
{{- $wanted = "a string" }}
{{- else if typeIs "float64" .value }}
{{- $_ := set . "value" (include "gpuready.number" .value) }}
{{- if contains "." .value }}
{{- $_ := set .found "notes" (append .found.notes (list .path (printf "%s is a number in YAML, which loses zeros at its end: write it in quotes" .value))) }}
{{- end }}
{{- else }}
{{- $_ := set . "value" (toString .value) }}
{{- end }}
{{- end }}
{{- if $wanted }}
{{- range .found.ignored }}
{{- if or (eq $box.path .key) (hasPrefix (printf "%s." .key) $box.path) }}
{{- $_ := unset $box "value" }}
{{- end }}
{{- end }}
{{- if hasKey . "value" }}
{{- $_ := set .found "refused" (append .found.refused (printf "%s: it is %s, not %s" .path $wanted (toJson .value))) }}
{{- end }}
{{- end }}
{{- end }}

{{- /* A number without an exponent. */}}
{{- define "gpuready.number" -}}
{{- if eq (floor .) . }}{{ printf "%.0f" . }}{{ else }}{{ . }}{{ end }}
{{- end }}

{{- /* Gets the value of a key into box.value, which stays unset if there is none: root, key. */}}
{{- define "gpuready.getValue" -}}
{{- $box := . }}
{{- $map := .root.Values }}
{{- $names := splitList "." .key }}
{{- range initial $names }}
{{- $next := get $map . }}
{{- $map = kindIs "map" $next | ternary $next dict }}
{{- end }}
{{- if not (kindIs "invalid" (get $map (last $names))) }}
{{- if hasKey $map (last $names) }}
{{- $_ := set $box "value" (get $map (last $names)) }}
{{- end }}
{{- end }}
{{- end }}

{{- /* Sets the value of a key: root, key, value. */}}
{{- define "gpuready.setValue" -}}
{{- $map := .root.Values }}
{{- $names := splitList "." .key }}
{{- range initial $names }}
{{- if not (kindIs "map" (get $map .)) }}
{{- $_ := set $map . dict }}
{{- end }}
{{- $map = get $map . }}
{{- end }}
{{- $_ := set $map (last $names) .value }}
{{- end }}

{{- /* Whether a note is to be made of a value: root, entry, box. */}}
{{- define "gpuready.isNoted" -}}
{{- $entry := .entry }}
{{- $on := true }}
{{- range $entry.when }}
{{- $switch := dict "root" $.root "key" . }}
{{- include "gpuready.getValue" $switch }}
{{- $on = and $on (eq "true" (toString $switch.value)) }}
{{- end }}
{{- if and $on (hasKey .box "value") }}
{{- $value := .box.value }}
{{- if hasKey $entry "is" }}
{{- if has (toString $value) (toStrings $entry.is) }}true{{ end }}
{{- else if and (include "gpuready.isSet" $value) (not (has (toString $value) (toStrings ($entry.unless | default list)))) }}true{{ end }}
{{- end }}
{{- end }}

{{- /* Whether a value has anything but null, false, 0, "", [] and {}. */}}
{{- define "gpuready.isSet" -}}
{{- if kindIs "map" . }}
{{- range . }}{{ include "gpuready.isSet" . }}{{ end }}
{{- else if . }}true{{ end }}
{{- end }}

{{- /* NVIDIA's operator cannot take the place of this one: list $ found. */}}
{{- define "gpuready.readOperatorImage" -}}
{{- $root := index . 0 }}
{{- $found := index . 1 }}
{{- $o := $root.Values.operator }}
{{- $ours := ($root.Files.Get "files/values.json" | fromJson).defaults.operator }}
{{- $theirs := list }}
{{- if eq $o.image "gpu-operator" }}
{{- $_ := set $o "image" $ours.image }}
{{- $_ := set $o "repository" $ours.repository }}
{{- $_ := set $o "version" "" }}
{{- $theirs = list "operator.repository" "operator.image" "operator.version" }}
{{- end }}
{{- if hasPrefix "nvcr.io/" $o.repository }}
{{- $_ := set $o "repository" $ours.repository }}
{{- $theirs = append $theirs "operator.repository" }}
{{- end }}
{{- if regexMatch "^v?[2-9][0-9]\\.[0-9]+\\." $o.version }}
{{- $_ := set $o "version" "" }}
{{- $theirs = append $theirs "operator.version" }}
{{- end }}
{{- range $theirs }}
{{- $_ := set $found "notes" (append $found.notes (list . (printf "NVIDIA's operator; %s runs in its place: if you have copied that image, name it here" (include "gpuready.image" $root)))) }}
{{- end }}
{{- if and (not $theirs) (contains "nvidia" $o.repository) }}
{{- $_ := set $found "notes" (append $found.notes (list "operator.repository" (printf "the image is %s: copy it there, or remove the value" (include "gpuready.image" $root)))) }}
{{- end }}
{{- end }}

{{- /* The candidate that a name resembles so much that it is a typing error, or "":
       list name candidates. Case and "-", "_" and "." do not count. One letter may differ, and
       two of 5 and more, but not the first. */}}
{{- define "gpuready.nearest" -}}
{{- $name := index . 0 | lower | replace "-" "" | replace "_" "" | replace "." "" }}
{{- $best := ge (len $name) 5 | ternary 3 (ge (len $name) 3 | ternary 2 1) }}
{{- $nearest := "" }}
{{- range index . 1 }}
{{- $other := . | lower | replace "-" "" | replace "_" "" | replace "." "" }}
{{- $difference := sub (len $name) (len $other) | int }}
{{- if and (eq (trunc 1 $name) (trunc 1 $other)) (lt $difference $best) (lt (sub 0 $difference | int) $best) }}
{{- $distance := include "gpuready.distance" (list $name $other) | int }}
{{- if lt $distance $best }}
{{- $best = $distance }}
{{- $nearest = . }}
{{- end }}
{{- end }}
{{- end }}
{{- $nearest }}
{{- end }}

{{- /* How many letters must be inserted, removed or replaced to make one word of another:
       list word word. */}}
{{- define "gpuready.distance" -}}
{{- $a := index . 0 }}
{{- $b := index . 1 }}
{{- $row := untilStep 0 (len $b | add 1 | int) 1 }}
{{- range $i := until (len $a) }}
{{- $next := list (add $i 1 | int) }}
{{- range $j := until (len $b) }}
{{- $cost := eq (index $a $i) (index $b $j) | ternary 0 1 }}
{{- $next = append $next (min (add (index $row $j) $cost) (add (index $row (add $j 1 | int)) 1) (add (last $next) 1) | int) }}
{{- end }}
{{- $row = $next }}
{{- end }}
{{- last $row }}
{{- end }}
