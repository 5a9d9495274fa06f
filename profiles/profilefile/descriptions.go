package profilefile

// descriptions says what each key is for, by its path. The schema for editors and docs/PROFILES.md are made of it.
func descriptions() map[string]string { //nolint:funlen // a table, one line for a key
	return map[string]string{
		"apiVersion":           "agentsafe.dev/v1.",
		"kind":                 "Profile.",
		"extends":              "The profile that this one starts from: a built-in or installed one. A key that the file has replaces the parent's value as a whole, lists too; a key that it has not keeps it.",
		"metadata.name":        "Lower-case letters, digits and hyphens, at most 63; not the name of a built-in profile.",
		"metadata.description": "One line for lists.",
		"capabilities":         "Upper bound of Linux capabilities, with or without CAP_. What the engine gives beyond it is cut if it is an engine's default, else refused. The empty list means none.",

		"syscalls.packs": "Groups of system calls that belong together: debug (ptrace, reading other processes' memory), browser (user namespaces for Chromium's sandbox), sudo (set-id programs get their rights: no_new_privs is off), containers (mounts and all namespaces).",
		"syscalls.allow": "Further calls by name, whatever their arguments are.",
		"syscalls.deny":  "Calls that answer EPERM. Wins over packs and allow.",

		"filesystem.read":                 "Folders whose files can be read and listed, with all below them. $HOME, ~ and $WORKSPACE can begin a path. A path that does not exist, or that leads over a symlink, grants nothing.",
		"filesystem.execute":              "Folders whose programs can be executed.",
		"filesystem.write":                "Folders whose files can be written, made and removed, and read.",
		"filesystem.hide":                 "Paths that are covered by something empty. Patterns as in \"**/.env\" or \"/home/*/.ssh\" are looked up when the container is created; what is made later is not hidden.",
		"filesystem.workspace.mode":       "What becomes of writes to the writable bind mounts of folders: direct (they reach the host), overlay (a layer keeps them until somebody promotes it), readonly (there are none).",
		"filesystem.workspace.promote":    "Who takes a layer over to the host: manual, which is also the default.",
		"filesystem.workspace.quota":      "Bytes that a layer can hold: 512MiB, 2GiB.",
		"filesystem.workspace.copy":       "How large a folder may be of which the task gets a copy where the kernel can't overlay it (a third overlay, a file system that overlayfs does not take): 512MiB, 2GiB. Without it such a folder is refused.",
		"filesystem.workspace.paths":      "The mounts that this holds for, by their place in the container. None means all.",
		"filesystem.workspace.background": "What becomes of processes that outlive their exec: kill or keep.",

		"network.mode":                       "none (loopback), gateway (names and ports by the rules below), engine (what the engine set up; private addresses and the cloud's metadata are unreachable), host (the host's own).",
		"network.allowPrivate":               "With the mode engine: private ranges that can be reached.",
		"network.allow":                      "With the mode gateway: rules as in \"*.example.org:443\", \"ssh://git.example.org\". None allows nothing.",
		"network.deny":                       "With the mode gateway: rules that win over allow.",
		"network.ruleSets":                   "With the mode gateway: named rules of ecosystems, such as pypi, npm, go, crates.",
		"network.addresses":                  "With the mode gateway: addresses that are not public and that allowed names may resolve to.",
		"network.dialFrom":                   "With the mode gateway: whose network it connects through, container or host.",
		"network.connectPorts":               "TCP ports that can be connected to, as the program names them, loopback's too: 443, 8000-8100. Holds in every mode, beside its rules. Without the list all can, with the empty list none.",
		"network.listenPorts":                "TCP ports that can be bound; 0 is one that the kernel picks. Without the list all can, with the empty list none.",
		"network.credentials":                "With the mode gateway: secrets that it adds to requests, so that the task never has them.",
		"network.credentials.name":           "Name of the credential, for logs.",
		"network.credentials.file":           "File of the host that holds the secret.",
		"network.credentials.command":        "Program of the host, with arguments, that prints the secret.",
		"network.credentials.destination":    "The one host and port that gets it.",
		"network.credentials.present":        "How it is presented: bearer, basic, header:NAME or query:NAME.",
		"network.credentials.baseURLEnv":     "Variable that gets the gateway's local address for this destination.",
		"network.credentials.basePath":       "Path of the local address, as in /v1; none by default.",
		"network.credentials.client":         "Program that is told of the local address by the variables that it reads: git, npm or pip.",
		"network.credentials.inspect":        "Whether the secret is put in place of the placeholder in TLS to the destination, which is inspected for that.",
		"network.credentials.placeholderEnv": "Variable that gets a value which is no secret, for programs that want one.",

		"host.namespaces": "Namespaces of the host that a spec may ask for: pid, network, ipc, uts.",
		"host.mounts":     "Paths of the host that may be bind mounts although they are dangerous, with all below them.",
		"host.devices":    "Devices that may be passed in: \"c 10:229 rw\"; * stands for every number.",
		"host.sysctls":    "Kernel parameters that may be set although no namespace holds them.",

		"environment.allow": "All variables that are kept: names, or beginnings of names with a * behind. None keeps all.",
		"environment.deny":  "Variables that are removed, by patterns: \"*_TOKEN\".",
		"environment.set":   "Variables that are added.",

		"limits.memory":            "Memory of all processes together: 512MiB, 4GiB.",
		"limits.pids":              "Processes and threads at a time.",
		"limits.cpus":              "CPUs: 0.5, 2.",
		"limits.wallClock":         "Time from start to the end of all processes: 90s, 15m.",
		"limits.cpuTime":           "Time on CPUs, of all processes together.",
		"limits.outputBytes":       "Bytes that each process of the engine's may write to its standard output, and to its standard error; then the stream ends.",
		"limits.onOutput":          "What happens to a task that writes more: stop (writing fails, EPIPE), discard (it goes on, and nobody reads it).",
		"limits.openFiles":         "Open files of one process.",
		"limits.egressBytes":       "Bytes that the gateway relays outwards.",
		"limits.layerBytes":        "Bytes of all layers of the container.",
		"limits.layerInodes":       "Files of all layers of the container.",
		"limits.ingressBytes":      "Bytes that the gateway relays to the task.",
		"limits.egressConnections": "Connections that the gateway keeps open at a time.",
		"limits.egressRequests":    "Connections and plain HTTP requests to one name, in all.",

		"exec.transaction": "auto: an exec without a terminal works on a layer of its own, which can be undone.",
		"exec.base":        "Commands (all their words, a space between) that get no such layer: probes of the kubelet's or Podman's, which can't be told from execs. Docker's health checks are known without it.",
		"exec.commit":      "When such a layer is kept: always, success (exit status 0), never.",
		"exec.wallClock":   "Time of one exec.",

		"trust.untrustedInput": "The task reads what nobody vouches for.",
		"trust.secrets":        "The task may hold secrets. If it may not, a variable or a mount that looks like one is refused.",
		"trust.externalWrite":  "The task may send to places that nobody listed. All three together refuse nothing: what is held is noted.",
		"trust.waive":          "Secrets that don't count: env:NAME, mount:PATH.",

		"evidence.mode":    "on: what happens is recorded in a log that can be verified.",
		"evidence.denials": "kernel: refused system calls and files are listed among the denials, as far as this kernel reports them (see below).",
		"evidence.onFull":  "What happens when nothing can be recorded any more: stop (the task ends), gap (the log says so).",

		"enforcement.landlock": "What happens on a kernel that can't enforce the rules on files and ports: required (creation fails), best-effort (a note, and what can be enforced is), off.",
	}
}
