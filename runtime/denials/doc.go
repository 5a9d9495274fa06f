// Package denials is the record of what a container was refused: one [Denial] a line, as JSON, in a file that the
// container itself reads ([Log]), so that a program or a model stops trying, and that people read from outside.
//
// Data in: refusals from whoever knows of them. The gateway's decisions come from its log ([FromGateway]), limits from
// the supervisor, system calls and files from the kernel's audit messages ([Listen], [Parse]). Nothing here refuses
// anything: a denial that is not recorded was refused all the same.
//
// # What the kernel reports
//
// The kernel's audit subsystem multicasts its messages to holders of CAP_AUDIT_READ in the first network and user
// namespace; no audit daemon is needed, and one that runs is not disturbed.
//
//   - A refused system call is reported if its filter was installed with SECCOMP_FILTER_FLAG_LOG, and if
//     /proc/sys/kernel/seccomp/actions_logged has errno, which is the kernel's default.
//   - A file that Landlock refused is reported from Linux 6.15 on (ABI 7), if the domain was made with
//     LANDLOCK_RESTRICT_SELF_LOG_NEW_EXEC_ON, and only while auditing is enabled on the host (auditctl -e 1, or an audit
//     daemon), which is the administrator's choice: it costs the system calls of all processes that start later, until
//     the next boot, unless the rule never,task exempts them. That is why no test enables it that was not told to
//     (AGENTSAFE_TEST_AUDIT). A port that Landlock refused likewise. What a sandbox of the task's own refuses is not
//     reported (LANDLOCK_RESTRICT_SELF_LOG_SUBDOMAINS_OFF): it is no rule of the profile's.
//   - A message names a process. Which container that is, its control group says; of a process that was gone and reaped
//     before anybody could look, nobody knows. Such messages are counted ([Reader.Lost]), not guessed.
//   - What plain permissions refuse (EACCES of a file mode, a read-only mount, a missing capability) no kernel reports.
//
// # What it refuses
//
// What a task asked for is hostile text. Every string is clipped, and lines are JSON. A task that provokes refusals fills
// neither disk nor memory: the same refusal is written when it is first seen and at its 10th, 100th, ... time, and a log
// takes [MaxDistinct] different ones.
//
// Minimum kernel: 5.15. Rejected: seccomp's user notification (an installed listener takes the place of a sandbox's
// inside, of which a task can have only one, and each refused call would wait for a process of ours), ptrace (every
// call stops), and probes in the kernel (for all processes of the host).
package denials
