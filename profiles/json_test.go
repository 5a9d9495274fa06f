package profiles

import (
	"encoding/json"
	"net/netip"
	"reflect"
	"strings"
	"testing"
)

// fill sets every field that v can reach to something.
func fill(t *testing.T, v reflect.Value, n *int64) {
	t.Helper()
	*n++
	switch x := v.Addr().Interface().(type) {
	case *netip.Prefix:
		*x = netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(*n), 0, 0}), 16)
		return
	case *PortRange:
		*x = PortRange{uint16(*n), uint16(*n) + 1}
		return
	}
	switch v.Kind() {
	case reflect.String:
		v.SetString(strings.Repeat("a\"\\\n", 1) + string(rune('a'+*n%26)) + "é")
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Int64:
		v.SetInt(*n)
	case reflect.Float64:
		v.SetFloat(float64(*n) + 0.5)
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 2, 2))
		for i := range 2 {
			fill(t, v.Index(i), n)
		}
	case reflect.Map:
		v.Set(reflect.ValueOf(map[string]string{"B": "1", "A": ""}))
	case reflect.Struct:
		for _, field := range v.Fields() {
			fill(t, field, n)
		}
	default:
		t.Fatalf("a field of a kind that the encoders don't know: %s", v.Type())
	}
}

// The encoders by hand say what the struct tags say: with all fields set, with none, and with each alone.
func TestProfile_MarshalJSON(t *testing.T) {
	var full Profile
	fill(t, reflect.ValueOf(&full).Elem(), new(int64))
	check := func(p Profile) {
		t.Helper()
		data, err := json.Marshal(&p)
		if err != nil {
			t.Fatal(err)
		}
		dec := json.NewDecoder(strings.NewReader(string(data)))
		dec.DisallowUnknownFields()
		var back Profile
		if err := dec.Decode(&back); err != nil {
			t.Fatalf("%v: %s", err, data)
		}
		if !reflect.DeepEqual(p, back) {
			t.Errorf("%s:\n got %+v\nwant %+v", data, back, p)
		}
	}
	check(full)
	check(Profile{})
	check(Profile{Network: Network{ConnectPorts: []PortRange{}, ListenPorts: []PortRange{}}})
	for i := range reflect.TypeFor[Profile]().NumField() {
		var p Profile
		from, to := reflect.ValueOf(&full).Elem().Field(i), reflect.ValueOf(&p).Elem().Field(i)
		to.Set(from)
		check(p)
		if from.Kind() != reflect.Struct {
			continue
		}
		for k := range from.NumField() {
			to.SetZero()
			to.Field(k).Set(from.Field(k))
			check(p)
			part, err := json.Marshal(to.Interface())
			if err != nil || len(part) < len(`{"a":1}`) {
				t.Errorf("%s: %s, %v", to.Type(), part, err)
			}
		}
	}
}

// Every part of a plan that is enforced beside the first process is in the policy's hash.
func TestPlan_HashCoversIntent(t *testing.T) {
	var full Profile
	fill(t, reflect.ValueOf(&full).Elem(), new(int64))
	base := Plan{Spec: loadSpec(t, "docker")}
	for _, part := range []struct {
		name string
		plan func(p *Plan) reflect.Value
		full reflect.Value
	}{
		{"workspace", func(p *Plan) reflect.Value { return reflect.ValueOf(&p.Workspace).Elem() }, reflect.ValueOf(full.Filesystem.Workspace)},
		{"gateway", func(p *Plan) reflect.Value { return reflect.ValueOf(&p.Gateway).Elem() }, reflect.ValueOf(full.Network)},
		{"limits", func(p *Plan) reflect.Value { return reflect.ValueOf(&p.Limits).Elem() }, reflect.ValueOf(full.Limits)},
		{"exec", func(p *Plan) reflect.Value { return reflect.ValueOf(&p.Exec).Elem() }, reflect.ValueOf(full.Exec)},
		{"evidence", func(p *Plan) reflect.Value { return reflect.ValueOf(&p.Evidence).Elem() }, reflect.ValueOf(full.Evidence)},
	} {
		for i := range part.full.NumField() {
			field := part.full.Type().Field(i).Name
			switch part.name + "." + field {
			case "limits.MemoryBytes", "limits.PIDs", "limits.CPUs", "gateway.AllowPrivate", "gateway.ConnectPorts", "gateway.ListenPorts":
				continue // in the hash as the spec's resources and Landlock's rules; of another mode
			case "gateway.Mode", "workspace.Mode":
				continue // decide whether the part is there at all
			}
			plan := base
			plan.Gateway.Mode, plan.Workspace.Mode = NetworkGateway, WorkspaceOverlay
			before := plan.Hash()
			part.plan(&plan).Field(i).Set(part.full.Field(i))
			if !json.Valid(plan.canonical()) {
				t.Errorf("not JSON: %s", plan.canonical())
			}
			if plan.Hash() == before {
				t.Errorf("%s.%s is not in the hash", part.name, field)
			}
		}
	}
}
