"""The fake engine: a program that behaves like an engine, or misbehaves as told (E-107).

Started as ``python -m stoker.testing.fake_engine``; `options` lists what it can be told, `flavours` whom it imitates.
"""
