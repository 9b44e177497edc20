@echo off
rem The two commands of the Makefile for Windows: make quickstart, make test. Each does all of its own set-up.
setlocal
cd /d "%~dp0"
if "%1"=="" goto usage
if not exist .venv\Scripts\python.exe py -3 -m venv .venv || exit /b 1
if not exist .venv\.installed (
  echo Installing slimprompt and its dependencies into .venv ^(a few minutes the first time^) ...
  .venv\Scripts\python -m pip install --quiet --disable-pip-version-check --editable ".[all,dev,docs]" || exit /b 1
  type nul > .venv\.installed
)
if "%1"=="quickstart" .venv\Scripts\slimprompt quickstart & exit /b
if "%1"=="test" .venv\Scripts\python -m pytest -n auto & exit /b
if "%1"=="test-fast" .venv\Scripts\python -m pytest -n auto -m "not slow" & exit /b
:usage
echo Usage: make quickstart ^| test ^| test-fast
exit /b 2
