"""Faults in sweeps: members, names, programs, memory, devices, folders, results, and the answers to wrong calls."""

from ._mutant import Mutant

MAKING, RUN = ("tests/test_sweeps.py",), ("tests/test_sweeps_run.py",)
FOLDER, DEVICES = ("tests/test_sweeps_folder.py",), ("tests/test_sweeps_devices.py",)
PROCESSES = ("tests/test_sweeps_devices.py -k processes",)


def _mutant(name: str, file: str, old: str, new: str, tests: tuple[str, ...]) -> Mutant:
    return Mutant(name, "sweeps", f"sweeps/{file}.py", old, new, tests)


MUTANTS = (
    _mutant("a-group-ignores-options", "_sweep", "if known == structure)", "if known[1] == structure[1])", RUN),
    _mutant("a-group-forgets-places", "_sweep", "group.places.append(place)", "group.places.append(place - 1)", MAKING),
    _mutant("a-mask-of-members-is-a-list-of-places", "_sweep", "if chosen.dtype == bool", "if False", MAKING),
    _mutant(
        "a-part-of-a-sweep-forgets-names",
        "_sweep",
        "Sweep(self.members[index], self.names)",
        "Sweep(self.members[index])",
        MAKING,
    ),
    _mutant("values-in-the-table-are-rounded", "_sweep", "float(str(value))", "float(f'{value:.3g}')", MAKING),
    _mutant(
        "zipped-is-a-product",
        "_sweep",
        "zip(*columns.values(), strict=True) if columns",
        "itertools.product(*columns.values()) if columns",
        MAKING,
    ),
    _mutant("an-option-is-swept", "_sweep", "if set(paths) <= optimizer.addresses().keys():", "if True:", MAKING),
    _mutant("a-matrix-of-values-is-flattened", "_sweep", "np.ndim(values) == 1 if", "np.ndim(values) >= 1 if", MAKING),
    _mutant(
        "a-member-may-be-a-batch", "_sweep", "    if path := batched_number(member):", "    if path := None:", MAKING
    ),
    _mutant(
        "log-uniform-is-uniform",
        "_spaces",
        "return math.exp(math.log(self.low) + u * (math.log(self.high) - math.log(self.low)))",
        "return self.low + u * (self.high - self.low)",
        MAKING,
    ),
    _mutant("one-minus-is-minus", "_spaces", "return 1.0 - self.space.at(u)", "return -self.space.at(u)", MAKING),
    _mutant(
        "a-choice-leaves-out-the-last",
        "_spaces",
        "int(u * len(self.values))",
        "int(u * (len(self.values) - 1))",
        MAKING,
    ),
    _mutant(
        "two-dimensions-are-drawn-independently",
        "_spaces",
        '"sobol" if len(spaces) > 1',
        '"sobol" if len(spaces) > 2',
        MAKING,
    ),
    _mutant(
        "samples-ignore-the-key", "_spaces", "np.random.default_rng(seed_of(key))", "np.random.default_rng(0)", MAKING
    ),
    _mutant(
        "optimizers-without-arrays-have-no-size",
        "_training",
        "            axis_size=width // self.where.size,\n",
        "",
        RUN,
    ),
    _mutant(
        "each-device-trains-all-members", "_training", "axis_size=width // self.where.size", "axis_size=width", DEVICES
    ),
    _mutant(
        "an-array-is-put-where-other-processes-are",
        "_training",
        "    if sharding.is_fully_addressable or",
        "    if True or",
        PROCESSES,
    ),
    _mutant(
        "the-data-are-constants-of-the-program",
        "_training",
        "jaxpr_as_fun(closed.replace(consts=consts))",
        "jaxpr_as_fun(closed)",
        RUN,
    ),
    _mutant("a-formatted-tracer-is-unexplained", "_training", '"Tracer.__format__", ', "", RUN),
    _mutant(
        "every-type-error-is-explained",
        "_training",
        "any(words in str(error) for words in READS_A_VALUE_TOO)",
        "'Tracer' in str(error)",
        RUN,
    ),
    _mutant("arguments-are-not-counted", "_training", "        signature.bind(None, None)\n", "        pass\n", RUN),
    _mutant("an-empty-metric-passes", "_training", 'return "" if np.size(x) else', 'return "" if True else', RUN),
    _mutant(
        "a-key-is-a-metric",
        "_training",
        '    if is_typed_key(x):\n        return "a random key"\n',
        "",
        RUN,
    ),
    _mutant("disable-jit-is-an-error-of-jax", "_training", "    if jax.config.jax_disable_jit:", "    if False:", RUN),
    _mutant(
        "a-number-of-devices-too-many", "_training", "0 < devices <= len(there)", "0 <= devices <= len(there)", DEVICES
    ),
    _mutant(
        "a-carry-may-change-its-dtype",
        "_population",
        'f"{x.dtype}{list(x.shape)}" for path',
        'f"{list(x.shape)}" for path',
        RUN,
    ),
    _mutant(
        "a-carry-may-change-its-non-arrays",
        "_population",
        "if changed or jtu.tree_structure",
        "if jtu.tree_structure",
        RUN,
    ),
    _mutant("a-padded-member-is-returned", "_population", "fetched(x)[: len(self.members)]", "fetched(x)", RUN),
    _mutant(
        "an-exhausted-device-is-unexplained",
        "_population",
        'if "RESOURCE_EXHAUSTED" not in str(error):',
        "if True:",
        RUN,
    ),
    _mutant(
        "a-carry-is-not-donated",
        "_population",
        ", donated=range(first, first + len(self.carry))",
        "",
        ("tests/test_sweeps_devices.py -k eighth",),
    ),
    _mutant(
        "results-are-not-in-the-memory",
        "_memory",
        "need.argument_size_in_bytes + need.output_size_in_bytes",
        "need.argument_size_in_bytes",
        RUN,
    ),
    _mutant(
        "a-chunk-is-not-compared-with-the-memory", "_memory", "    if chunk is not None:\n", "    if False:\n", RUN
    ),
    _mutant("a-chunk-is-one", "_memory", "int(least + (budget - need_of_least) / slope)", "least", RUN),
    _mutant(
        "each-process-has-its-own-chunk", "_memory", "    if jax.process_count() > 1:\n", "    if False:\n", PROCESSES
    ),
    _mutant(
        "the-advice-does-not-divide-by-the-devices", "_memory", "rounded(max(width // 2, 1))", "max(width // 2, 1)", RUN
    ),
    _mutant(
        "a-segment-is-one-too-early",
        "_run",
        "all_of_them[lane.places, :, segment] = x",
        "all_of_them[lane.places, :, segment - 1] = x",
        RUN,
    ),
    _mutant(
        "a-carry-of-the-segment-before",
        "_run",
        "folder.carry, name, finished - 1,",
        "folder.carry, name, max(finished - 2, 0),",
        FOLDER,
    ),
    _mutant(
        "carries-stay", "_run", "                folder.forget(name, segment - 1)\n", "                pass\n", FOLDER
    ),
    _mutant(
        "addresses-are-compared", "_description", 're.sub(r" at 0x[0-9a-f]+", "", ', 're.sub(r" at 0y", "", ', FOLDER
    ),
    _mutant(
        "keys-are-not-compared",
        "_run",
        '            "keys": np.asarray(jax.random.key_data(self.keys)).tolist(),\n',
        "",
        FOLDER,
    ),
    _mutant(
        "a-chunk-of-a-folder-stays-after-an-exhausted-device",
        "_run",
        "(chunk is None or folder.has_metrics())",
        "True",
        FOLDER,
    ),
    _mutant("a-key-may-be-a-batch", "_run", "is_typed_key(key) and key.ndim == 0", "is_typed_key(key)", RUN),
    _mutant(
        "metrics-are-written-before-carries",
        "_folder",
        "        os.replace(fresh, self._metrics(name, segment))\n",
        "        shutil.rmtree(self._carry(name, segment))\n"
        "        os.replace(fresh, self._metrics(name, segment))\n"
        "        save(self._carry(name, segment), _by_name(carry), overwrite=True)\n",
        FOLDER,
    ),
    _mutant("a-folder-killed-at-once-is-foreign", "_folder", " - BEGUN and", " and", FOLDER),
    _mutant(
        "the-last-of-a-curve-is-its-first",
        "_results",
        "np.maximum(self.segments * length - 1, 0)",
        "np.maximum(self.segments * 0, 0)",
        RUN,
    ),
    _mutant(
        "a-diverged-member-is-best",
        "_results",
        "np.where(np.isfinite(values) & is_last, values, worst)",
        "np.where(is_last, values, worst)",
        RUN,
    ),
    _mutant("large-is-small", "_results", "scores.argmin() if mode ==", "scores.argmin() if 'min' ==", RUN),
    _mutant("a-complex-number-has-an-order", "_results", "if np.iscomplexobj(values):", "if False:", RUN),
    _mutant("a-seed-that-diverges-marks-all", "_results", "*bad.shape, -1", "bad.shape[0], 1, -1", RUN),
    _mutant("one-seed-has-an-axis", "_training", "if self.seeds > 1:", "if self.seeds > 0:", RUN),
    _mutant("a-description-forgets-closures", "_description", "function.__closure__ or ()", "()", FOLDER),
    _mutant("a-description-forgets-constants", "_description", "for part in x.co_consts", "for part in ()", FOLDER),
    _mutant("a-description-forgets-partials", "_description", "(x.func, *x.args,", "(*x.args,", FOLDER),
    _mutant("a-metric-takes-the-column", "_results", "if name in taken else name", "if not taken else name", RUN),
)
