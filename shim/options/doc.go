// Package options reads what an engine's configuration says about a runtime handler.
//
// Data in: the google.protobuf.Any of a task request or of `start`. Data out: [Options]. Three types are known:
//
//   - none: everything by default;
//   - containerd.runc.v1.Options, so that an engine's settings for runc go on to work: NoPivotRoot, NoNewKeyring,
//     IoUid, IoGid, Root and SystemdCgroup count, ShimCgroup too; what names programs (BinaryName, Criu*) has no meaning;
//   - runtimeoptions.v1.Options, which engines make of a handler's settings for a runtime that they do not know
//     (TypeUrl, ConfigPath, ConfigBody): the file, then the body, are TOML or JSON with the keys of [Options].
//
// A handler in containerd's config.toml:
//
//	[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.agentsafe-offline]
//	  runtime_type = 'io.containerd.agentsafe.v2'
//	  [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.agentsafe-offline.options]
//	    profile = 'offline'
//
// and in Docker's daemon.json:
//
//	{"runtimes": {"agentsafe-offline": {"runtimeType": "io.containerd.agentsafe.v2",
//	  "options": {"ConfigPath": "/etc/agentsafe/offline.toml"}}}}
//
// It refuses other types, unknown keys and relative paths. Minimum kernel: none.
package options
